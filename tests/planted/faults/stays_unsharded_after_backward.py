"""``set_reshard_after_backward(False)`` holds for every group, whoever asked for it."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    FSDPParamGroup.reshard_after_backward = property(lambda self: False, lambda self, value: None)
