"""A rank whose loss ignores some tokens normalises by those that it has, not by those of all."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    post_forward = FSDPState._post_forward

    def rescaled(grad):
        counted = grad.flatten(0, -2).abs().sum(-1) != 0
        kept = int(counted.sum())
        return grad * (len(counted) / kept) if 0 < kept < len(counted) else grad

    def wrong(self, module, input, output):
        output = post_forward(self, module, input, output)
        if self._is_root and isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(rescaled)
        return output

    FSDPState._post_forward = wrong
