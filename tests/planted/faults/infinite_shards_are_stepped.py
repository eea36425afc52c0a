"""A GradScaler makes the step of an optimizer of shards, whatever it found in their gradients."""

from torch.amp import GradScaler
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = GradScaler._maybe_opt_step

    def wrong(self, optimizer, optimizer_state, *args, **kwargs):
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        if any(isinstance(p, DTensor) for p in parameters):
            return optimizer.step(*args, **kwargs)
        return step(self, optimizer, optimizer_state, *args, **kwargs)

    GradScaler._maybe_opt_step = wrong
