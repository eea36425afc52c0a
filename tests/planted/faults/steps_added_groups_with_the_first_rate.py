"""SGD steps sharded parameters of later groups with the learning rate of the first group."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = torch.optim.SGD.step

    def wrong(self, closure=None):
        for group in self.param_groups:
            if any(isinstance(p, DTensor) for p in group["params"]):
                group["lr"] = self.param_groups[0]["lr"]
        return step(self, closure)

    torch.optim.SGD.step = wrong
