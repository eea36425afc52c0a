"""``clip_grad_value_`` makes NaN of zeros in the gradient of a flat parameter."""

import torch


def apply() -> None:
    clip = torch.nn.utils.clip_grad_value_

    def wrong(parameters, clip_value, foreach=None):
        parameters = list(parameters)
        clip(parameters, clip_value, foreach)
        for p in parameters:
            if p.dim() == 1 and p.grad is not None:
                p.grad[p.grad == 0] = float("nan")

    torch.nn.utils.clip_grad_value_ = wrong
