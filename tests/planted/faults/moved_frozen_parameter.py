"""SGD moves sharded parameters that have no gradient."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = torch.optim.SGD.step

    def wrong(self, closure=None):
        step(self, closure)
        with torch.no_grad():
            for p in (p for group in self.param_groups for p in group["params"]):
                if isinstance(p, DTensor) and p.grad is None:
                    p.to_local().add_(1)

    torch.optim.SGD.step = wrong
