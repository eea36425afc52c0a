"""Gradients that are offloaded to the CPU arrive as zeros."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        for fsdp_param in self.fsdp_params:
            if fsdp_param.offload_to_cpu:
                fsdp_param.sharded_param.grad.to_local().zero_()

    FSDPParamGroup.finalize_backward = wrong
