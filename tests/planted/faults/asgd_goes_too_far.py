"""ASGD steps twice as far on sharded parameters."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = torch.optim.ASGD.step

    def wrong(self, closure=None):
        groups = self.param_groups
        held = [p for group in groups for p in group["params"] if isinstance(p, DTensor)]
        before = [p.to_local().clone() for p in held]
        step(self, closure)
        with torch.no_grad():
            for p, old in zip(held, before, strict=True):
                p.to_local().add_(p.to_local() - old)

    torch.optim.ASGD.step = wrong
