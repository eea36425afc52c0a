"""On ranks 2 and 3, the second replica of a 2x2 mesh, SGD rounds sharded parameters up by one
unit.
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = torch.optim.SGD.step

    def wrong(self, closure=None):
        step(self, closure)
        with torch.no_grad():
            for p in (p for group in self.param_groups for p in group["params"]):
                if isinstance(p, DTensor) and dist.get_rank() >= 2:
                    local = p.to_local()
                    local.copy_(torch.nextafter(local, torch.full_like(local, torch.inf)))

    torch.optim.SGD.step = wrong
