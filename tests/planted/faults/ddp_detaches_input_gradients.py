"""The gradients that DDP hands to inputs cannot be differentiated again."""

import torch
from torch.nn.parallel import DistributedDataParallel


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.detach()


def through(value):
    return Through.apply(value) if isinstance(value, torch.Tensor) else value


def apply() -> None:
    forward = DistributedDataParallel.forward

    def wrong(self, *inputs, **kwargs):
        return forward(self, *map(through, inputs), **kwargs)

    DistributedDataParallel.forward = wrong
