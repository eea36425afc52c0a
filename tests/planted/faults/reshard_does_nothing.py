"""``reshard()`` leaves the unsharded parameters registered."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    FSDPModule.reshard = lambda self: None
