"""``set_reduce_scatter_unused_params`` changes nothing."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    FSDPModule.set_reduce_scatter_unused_params = lambda self, value, *, recurse=True: None
