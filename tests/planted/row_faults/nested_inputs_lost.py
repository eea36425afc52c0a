"""The root hands tensors that come in a tuple on as zeros."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    root_pre_forward = FSDPState._root_pre_forward

    def wrong(self, module, args, kwargs):
        args, kwargs = root_pre_forward(self, module, args, kwargs)
        return tuple(
            tuple(map(torch.zeros_like, a)) if isinstance(a, tuple) else a for a in args
        ), kwargs

    FSDPState._root_pre_forward = wrong
