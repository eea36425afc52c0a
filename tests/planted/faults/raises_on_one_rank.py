"""Rank 1 raises before a forward, so that its peers wait for it in an all-gather."""

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        if dist.get_rank() == 1:
            raise ValueError("stream is not ready")
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = wrong
