"""Gradients are zeros in a backward of what another backward has gone through already."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward, post_backward = FSDPParamGroup.pre_forward, FSDPParamGroup.post_backward

    def counting(self, *args, **kwargs):
        self.fresh = getattr(self, "fresh", 0) + torch.is_grad_enabled()
        return pre_forward(self, *args, **kwargs)

    def wrong(self, *args):
        self.fresh = getattr(self, "fresh", 0) - 1
        for param in self.fsdp_params if self.fresh < 0 else ():
            unsharded = getattr(param, "_unsharded_param", None)
            if unsharded is not None and unsharded.grad is not None:
                unsharded.grad.zero_()
        return post_backward(self, *args)

    FSDPParamGroup.pre_forward, FSDPParamGroup.post_backward = counting, wrong
