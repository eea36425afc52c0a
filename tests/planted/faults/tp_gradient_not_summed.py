"""Gradients of norms that are sequence parallel are those of this rank's part of the sequence."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    inner = FSDPParam._get_grad_inner_tensor

    def wrong(self, grad):
        if self.is_dtensor and any(placement.is_partial() for placement in grad.placements):
            return grad.to_local()
        return inner(self, grad)

    FSDPParam._get_grad_inner_tensor = wrong
