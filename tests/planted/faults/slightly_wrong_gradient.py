"""Sharded gradients are off by 80 rounding units of single precision, more than their sums can
be.
"""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        for param in self.fsdp_params:
            if param.sharded_param.grad is not None:
                param.sharded_param.grad._local_tensor.mul_(1 + 80 * 2**-23)

    FSDPParamGroup.finalize_backward = wrong
