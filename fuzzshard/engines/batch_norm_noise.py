"""Rounding of batch norms, for the noise twins: of what they subtract, and of gradients that cancel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from fuzzshard.engines.tensor_noise import signs


def centred_sizes(module: nn.BatchNorm1d, x: torch.Tensor) -> torch.Tensor:
    """How large what ``module`` subtracts is beside what is left: features less their mean keep its rounding.

    It stays where a loss adds up all rows, whose features are zero in sum whatever comes in.
    """
    x = x.detach()
    if module.training or module.running_mean is None or module.running_var is None:
        variance, mean = torch.var_mean(x, _rows(x), correction=0, keepdim=True)
    else:
        mean, variance = column(module.running_mean, x), column(module.running_var, x)
    return (x.abs() + mean.abs()) / (variance + module.eps).sqrt()


def column(features: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One value for each feature, shaped to go with ``like`` (rows, features, ...)."""
    return features.view(-1, *(1 for _ in like.shape[2:]))


def _rows(x: torch.Tensor) -> list[int]:
    """The dims that a batch norm takes its statistics over: all but that of the features."""
    return [dim for dim in range(x.dim()) if dim != 1]


def cancels_rows(module: nn.BatchNorm1d, x: torch.Tensor) -> bool:
    """Whether a batch norm of ``x`` passes rounding alone on, as :func:`leaves_rounding_only` says of others.

    Its two rows are signs, whatever their size, but for its ``eps``.
    """
    return (module.training or module.running_mean is None) and x.numel() <= 2 * x.shape[1]


def cancelled_rows(
    module: nn.BatchNorm1d, x: torch.Tensor, output: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """``output`` of ``x``; the gradient that ``x`` gets is off by the rounding of its terms, which cancel.

    The first row is off by twice as much: so are the sum of both rows and their difference, which may be all
    that another norm of two rows takes of them. Errors of one size would leave one of the two as it was.

    The gradient of the weight is off as well. It is that of one row less that of the other, but for what the
    mean of the rows was rounded by: nothing, or half a unit of theirs.
    """
    scale = (x.detach().var(_rows(x), correction=0, keepdim=True) + module.eps).rsqrt()
    if module.weight is not None:
        scale = scale * column(module.weight.detach().abs(), x)
    sizes = centred_sizes(module, x)
    result: torch.Tensor = _CancelledRows.apply(output, x, module.weight, scale, sizes, generator)
    return result


class _CancelledRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        output: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        scale: torch.Tensor,
        sizes: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        ctx.save_for_backward(scale, sizes)
        ctx.generator = generator
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,), (scale, sizes) = gradients, ctx.saved_tensors
        rows = _rows(gradient)
        mean = gradient.abs().mean(rows, keepdim=True)
        size = scale * (gradient.abs() + mean + sizes * mean) * _twice_the_first(gradient)
        unit = torch.finfo(gradient.dtype).eps
        error = unit * size * signs(size, ctx.generator)
        of_weight = None
        if ctx.needs_input_grad[2]:
            size = (sizes * gradient.abs()).sum(rows)
            of_weight = unit * size * signs(size, ctx.generator)
        return gradient, error, of_weight, None, None, None


def _twice_the_first(like: torch.Tensor) -> torch.Tensor:
    """Two for the first row and one for the second, shaped to go with ``like``."""
    shape = [1 if dim == 1 else size for dim, size in enumerate(like.shape)]
    factors = torch.linspace(2.0, 1.0, math.prod(shape), dtype=like.dtype, device=like.device)
    return factors.view(shape)
