"""Rank 1 never comes back from the reshard after a forward."""

import threading

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_forward = FSDPParamGroup.post_forward

    def wait_for_ever(self, module, inputs, output):
        if dist.get_rank() == 1:
            threading.Event().wait()
        return post_forward(self, module, inputs, output)

    FSDPParamGroup.post_forward = wait_for_ever
