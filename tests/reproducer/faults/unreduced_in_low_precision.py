"""Gradients that wait for their reduction do so in bfloat16, whatever they are reduced in."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    begin = FSDPParam.to_accumulated_grad_if_needed

    def wrong(self):
        begin(self)
        if self.unsharded_accumulated_grad is not None:
            self.unsharded_accumulated_grad = self.unsharded_accumulated_grad.bfloat16()

    FSDPParam.to_accumulated_grad_if_needed = wrong
