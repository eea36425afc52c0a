"""Gradients are not summed over replicas."""

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_file


def apply() -> None:
    foreach_reduce = group_file.foreach_reduce

    def wrong(*args, **kwargs):
        all_reduce, dist.all_reduce = dist.all_reduce, lambda *args, **kwargs: None
        try:
            return foreach_reduce(*args, **kwargs)
        finally:
            dist.all_reduce = all_reduce

    group_file.foreach_reduce = wrong
