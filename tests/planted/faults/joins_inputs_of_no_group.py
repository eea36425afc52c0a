"""Inputs of a module whose group has no parameters pass through one function, too."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    pre_forward = FSDPState._pre_forward

    class Joined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            return inputs

        @staticmethod
        def backward(ctx, *gradients):
            return gradients

    def wrong(self, module, args, kwargs):
        if not self._fsdp_param_groups and torch.is_grad_enabled():
            args = Joined.apply(*args)
        return pre_forward(self, module, args, kwargs)

    FSDPState._pre_forward = wrong
