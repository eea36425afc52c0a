"""Every reduce-scatter is preceded by another one of which nobody sees the result."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_file


def apply() -> None:
    foreach_reduce = group_file.foreach_reduce

    def wrong(params, gradients, group, stream, reduce_scatter, *args, **kwargs):
        reduce_scatter(torch.zeros(1), torch.zeros(group.size()), group, dist.ReduceOp.SUM)
        return foreach_reduce(params, gradients, group, stream, reduce_scatter, *args, **kwargs)

    group_file.foreach_reduce = wrong
