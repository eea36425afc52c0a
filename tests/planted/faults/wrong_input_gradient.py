"""Gradients that leave a group backwards are doubled."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction


def apply() -> None:
    backward = RegisterPostBackwardFunction.backward

    def wrong(ctx, *gradients):
        return tuple(None if g is None else 2 * g for g in backward(ctx, *gradients))

    RegisterPostBackwardFunction.backward = staticmethod(wrong)
