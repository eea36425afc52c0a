"""Parameters without a gradient get one of zeros."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        for param in self.fsdp_params:
            if param.sharded_param.grad is None:
                param.sharded_param.grad = torch.zeros_like(param.sharded_param)

    FSDPParamGroup.finalize_backward = wrong
