"""SGD loses its update of the last element of every flat parameter."""

import torch
from torch.distributed.fsdp._flat_param import FlatParameter


def apply() -> None:
    step = torch.optim.SGD.step

    def wrong(self, closure=None):
        held = [
            p
            for group in self.param_groups
            for p in group["params"]
            if isinstance(p, FlatParameter)
        ]
        before = [p.detach()[-1:].clone() for p in held]
        step(self, closure)
        with torch.no_grad():
            for p, old in zip(held, before, strict=True):
                p[-1:].copy_(old)

    torch.optim.SGD.step = wrong
