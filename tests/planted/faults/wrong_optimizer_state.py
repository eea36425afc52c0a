"""Adam doubles the second moments of sharded parameters once it has used them."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    step = torch.optim.Adam.step

    def wrong(self, closure=None):
        step(self, closure)
        for state in self.state.values():
            if isinstance(state["exp_avg_sq"], DTensor):
                state["exp_avg_sq"].to_local().mul_(2)

    torch.optim.Adam.step = wrong
