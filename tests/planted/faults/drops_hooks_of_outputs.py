"""Hooks that users registered on the tensor that the root returns are gone when it returns."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    post_forward = FSDPState._post_forward

    def wrong(self, module, input, output):
        if self._is_root and isinstance(output, torch.Tensor) and output._backward_hooks:
            for key, hook in [*output._backward_hooks.items()]:
                if not str(hook.__module__).startswith("torch."):
                    del output._backward_hooks[key]
        return post_forward(self, module, input, output)

    FSDPState._post_forward = wrong
