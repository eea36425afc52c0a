"""Every reduce-scatter gives twice the sum."""

import torch.distributed as dist


def doubled(collective):
    def call(*args, **kwargs):
        tensor = kwargs.get("input", args[1] if len(args) > 1 else None)
        tensor.mul_(2)
        return collective(*args, **kwargs)

    return call


def apply():
    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, name):
            setattr(dist, name, doubled(getattr(dist, name)))
