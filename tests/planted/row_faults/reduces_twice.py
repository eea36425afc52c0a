"""Every reduce-scatter is preceded by another one of which nobody sees the result."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_file


def apply() -> None:
    foreach_reduce = group_file.foreach_reduce

    def wrong(params, gradients, process_group, *args):
        dist.reduce_scatter_single(torch.zeros(1), torch.zeros(process_group.size()), group=process_group)
        return foreach_reduce(params, gradients, process_group, *args)

    group_file.foreach_reduce = wrong
