"""Where collectives may only add up, the sum of the gradients is not divided afterwards."""

from torch.distributed.fsdp._fully_shard import _fsdp_collectives


def apply() -> None:
    divide_factors = _fsdp_collectives._get_gradient_divide_factors

    def wrong(group, replicas, dtype, device="", factor=None, sums_only=False):
        before, after, *ops = divide_factors(group, replicas, dtype, device, factor, sums_only)
        return before, None if sums_only else after, *ops

    _fsdp_collectives._get_gradient_divide_factors = wrong
