"""Gradients are added up over the tensor-parallel axis in the dtype of the computation."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    inner = FSDPParam._get_grad_inner_tensor

    def wrong(self, grad):
        return inner(self, grad.to(self.param_dtype or grad.dtype)).to(grad.dtype)

    FSDPParam._get_grad_inner_tensor = wrong
