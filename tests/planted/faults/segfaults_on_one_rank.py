"""Rank 1 reads through a null pointer."""

import ctypes

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        if dist.get_rank() == 1:
            ctypes.string_at(0)
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = wrong
