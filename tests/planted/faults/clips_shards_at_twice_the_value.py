"""``clip_grad_value_`` lets sharded gradients be twice as large."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    clip = torch.nn.utils.clip_grad_value_

    def wrong(parameters, clip_value, foreach=None):
        parameters = list(parameters)
        for p in parameters:
            factor = 2 if isinstance(p.grad, DTensor) else 1
            clip([p], factor * clip_value, foreach)

    torch.nn.utils.clip_grad_value_ = wrong
