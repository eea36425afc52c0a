"""A gradient that waits for its reduction is doubled whenever a backward is over."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    begin = FSDPParam.to_accumulated_grad_if_needed

    def wrong(self):
        begin(self)
        if self._unsharded_param.grad is not None:
            self._unsharded_param.grad.mul_(2)

    FSDPParam.to_accumulated_grad_if_needed = wrong
