"""The forward of DDP raises another error than that of ``tests/planted/faults/ddp_raises.py``."""

from torch.nn.parallel import DistributedDataParallel


def apply() -> None:
    def wrong(self, *inputs, **kwargs):
        raise ValueError("bucket 8")

    DistributedDataParallel.forward = wrong
