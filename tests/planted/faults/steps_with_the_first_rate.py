"""SGD steps sharded parameters with the learning rate that it was made with."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = torch.optim.SGD.step

    def wrong(self, closure=None):
        for group in self.param_groups:
            if any(isinstance(parameter, DTensor) for parameter in group["params"]):
                group["lr"] = self.defaults["lr"]
        return step(self, closure)

    torch.optim.SGD.step = wrong
