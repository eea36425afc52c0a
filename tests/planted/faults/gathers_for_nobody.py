"""Every forward of a group is preceded by an all-gather of which nobody sees the result."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, *args):
        group = self._all_gather_process_group
        dist.all_gather_into_tensor(torch.zeros(group.size()), torch.zeros(1), group)
        return pre_forward(self, *args)

    FSDPParamGroup.pre_forward = wrong
