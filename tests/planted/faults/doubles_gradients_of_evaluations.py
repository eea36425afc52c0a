"""Sharded gradients are doubled after a backward of a module in evaluation mode."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        for param in self.fsdp_params:
            training = any(module.training for module in self.modules)
            if param.sharded_param.grad is not None and not training:
                param.sharded_param.grad._local_tensor.mul_(2)

    FSDPParamGroup.finalize_backward = wrong
