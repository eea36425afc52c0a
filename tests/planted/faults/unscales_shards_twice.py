"""A GradScaler forgets that it has unscaled the gradients of shards: its step does it again."""

from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.distributed.tensor import DTensor


def apply() -> None:
    unscale = GradScaler.unscale_

    def wrong(self, optimizer):
        unscale(self, optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(isinstance(p, DTensor) for p in parameters):
            self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY

    GradScaler.unscale_ = wrong
