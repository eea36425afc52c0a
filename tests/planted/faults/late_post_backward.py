"""No group shards or reduces before the whole backward has ended."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction


def apply() -> None:
    RegisterPostBackwardFunction.backward = staticmethod(lambda ctx, *grads: (None, *grads))
