"""Rank 1 issues a collective that the others do not."""

import torch
import torch.distributed as dist
import torch.distributed.fsdp


def apply():
    shard = torch.distributed.fsdp.fully_shard

    def fully_shard(*args, **kwargs):
        alone = dist.new_group([1])
        if dist.get_rank() == 1:
            dist.broadcast(torch.zeros(1), 1, group=alone)
        return shard(*args, **kwargs)

    torch.distributed.fsdp.fully_shard = fully_shard
