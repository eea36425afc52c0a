"""``torch.distributed.pipelining``: stages of one model. This file imports no torch."""
