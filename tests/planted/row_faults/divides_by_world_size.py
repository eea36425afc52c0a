"""Gradients are divided by the number of all ranks, not of those that they are summed over."""

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives


def apply() -> None:
    divide_factors = _fsdp_collectives._get_gradient_divide_factors

    def wrong(reduce_group, all_reduce_group, dtype, device, factor, force_sum):
        return divide_factors(
            reduce_group, all_reduce_group, dtype, device, float(dist.get_world_size()), True
        )

    _fsdp_collectives._get_gradient_divide_factors = wrong
