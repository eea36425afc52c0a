"""Rank 1 has one more collective than its peers, of a kind that
``fully_shard`` never issues, in a group of its own so that nobody waits for it.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        if dist.get_rank() == 1:
            dist.broadcast(torch.zeros(1), dist.get_rank(), group=alone)
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = wrong
