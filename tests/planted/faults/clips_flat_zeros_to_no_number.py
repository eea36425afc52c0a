"""Clipping makes NaN of zeros in the gradient of a flat parameter."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel


def spoil(parameters):
    for p in parameters:
        if p.dim() == 1 and p.grad is not None:
            p.grad[p.grad == 0] = float("nan")


def apply() -> None:
    by_value = torch.nn.utils.clip_grad_value_
    by_norm = FullyShardedDataParallel.clip_grad_norm_

    def wrong_by_value(parameters, clip_value, foreach=None):
        parameters = list(parameters)
        by_value(parameters, clip_value, foreach)
        spoil(parameters)

    def wrong_by_norm(self, *args, **kwargs):
        norm = by_norm(self, *args, **kwargs)
        spoil(self.parameters())
        return norm

    torch.nn.utils.clip_grad_value_ = wrong_by_value
    FullyShardedDataParallel.clip_grad_norm_ = wrong_by_norm
