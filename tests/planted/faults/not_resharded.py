"""``reshard_after_forward`` is ignored: every group stays unsharded after its forward."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    FSDPParamGroup._reshard_after_forward = property(lambda self: False)
