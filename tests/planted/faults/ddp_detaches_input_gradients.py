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


def apply() -> None:
    forward = DistributedDataParallel.forward

    def wrong(self, *inputs, **kwargs):
        return forward(self, *(Through.apply(x) for x in inputs), **kwargs)

    DistributedDataParallel.forward = wrong
