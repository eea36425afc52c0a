"""``unshard()`` does not wait for the parameters, so the sharded ones stay registered."""

from torch.distributed.fsdp._fully_shard._fully_shard import _UnshardHandleImpl


def apply() -> None:
    _UnshardHandleImpl.wait = lambda self: None
