"""Gradients that wait for their reduction are rounded to bfloat16 whenever one is added."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    accumulate = FSDPParam.accumulate_unsharded_grad_if_needed

    def wrong(self):
        accumulate(self)
        if self.unsharded_accumulated_grad is not None:
            held = self.unsharded_accumulated_grad
            held.copy_(held.bfloat16())

    FSDPParam.accumulate_unsharded_grad_if_needed = wrong
