"""An FSDP1 unit adds one to what its module returns."""

from torch.distributed.fsdp import FullyShardedDataParallel


def apply() -> None:
    forward = FullyShardedDataParallel.forward
    FullyShardedDataParallel.forward = lambda self, *args, **kwargs: (
        forward(self, *args, **kwargs) + 1
    )
