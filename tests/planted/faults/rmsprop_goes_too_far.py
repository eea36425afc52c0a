"""RMSprop steps sharded parameters twice as far."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = torch.optim.RMSprop.step

    def wrong(self, closure=None):
        for group in self.param_groups:
            if any(isinstance(parameter, DTensor) for parameter in group["params"]):
                group["lr"] *= 2
        return step(self, closure)

    torch.optim.RMSprop.step = wrong
