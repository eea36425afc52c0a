"""Rank 0 of an HSDP mesh keeps its own gradients: the all-reduce over replicas leaves it out."""

import torch.distributed as dist


def apply():
    reduce = dist.all_reduce

    def all_reduce(tensor, *args, **kwargs):
        group = kwargs.get("group")
        if group is None or dist.get_world_size(group) == dist.get_world_size():
            return reduce(tensor, *args, **kwargs)
        own = tensor.clone()
        kwargs["async_op"] = False
        reduce(tensor, *args, **kwargs)
        if dist.get_rank() == 0:
            tensor.copy_(own)
        return None

    dist.all_reduce = all_reduce
