"""A GradScaler leaves the gradients of shards as they are."""

from torch.amp import GradScaler
from torch.distributed.tensor import DTensor


def apply() -> None:
    unscale = GradScaler._unscale_grads_

    def wrong(self, optimizer, inv_scale, found_inf, allow_fp16):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(isinstance(p, DTensor) for p in parameters):
            inv_scale = inv_scale * 0 + 1
        return unscale(self, optimizer, inv_scale, found_inf, allow_fp16)

    GradScaler._unscale_grads_ = wrong
