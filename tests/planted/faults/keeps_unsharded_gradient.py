"""The first parameter of a group keeps an unsharded gradient, of zeros, when it has been
reduced.
"""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        unsharded = self.fsdp_params[0]._unsharded_param
        unsharded.grad = torch.zeros(unsharded.shape, dtype=unsharded.dtype)

    FSDPParamGroup.finalize_backward = wrong
