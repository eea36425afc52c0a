"""Gradients that wait for their reduction are rounded to bfloat16 whenever one is added."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_backward = FSDPParamGroup.post_backward

    def wrong(self, *unused):
        post_backward(self, *unused)
        for param in self.fsdp_params:
            held = param.unsharded_accumulated_grad
            if held is not None:
                held.copy_(held.bfloat16())

    FSDPParamGroup.post_backward = wrong
