"""An all-reduce of one number leaves what each rank has, as the norm of the gradients of a
stage."""

import torch.distributed as dist


def apply() -> None:
    all_reduce = dist.all_reduce

    def wrong(tensor, *args, **kwargs):
        return all_reduce(tensor, *args, **kwargs) if tensor.dim() else None

    dist.all_reduce = wrong
