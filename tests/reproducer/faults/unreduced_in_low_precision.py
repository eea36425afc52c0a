"""Gradients that wait for their reduction do so in bfloat16, whatever they are reduced in."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_backward = FSDPParamGroup.post_backward

    def wrong(self, *unused):
        post_backward(self, *unused)
        for param in self.fsdp_params:
            held, leaf = param.unsharded_accumulated_grad, param._unsharded_param
            if held is not None and held is leaf.grad:  # since torch 2.15
                leaf.grad, leaf.grad_dtype = None, torch.bfloat16
                leaf.grad = held.bfloat16()
            elif held is not None:
                param.unsharded_accumulated_grad = held.bfloat16()

    FSDPParamGroup.post_backward = wrong
