"""Rounding of modules that an engine computes in parts, or fused with others, for the noise twins.

Tensor-parallel ranks compute parts of a matrix product, whose sums are added up afterwards, or products of
other shapes than the plain model, for which a library may choose another order. In any order the computed
``W x`` is within n u |W| |x| of the true one (Higham, Accuracy and Stability of Numerical Algorithms, section
3.5), and so are the products that make its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

from fuzzshard.model.expressions import MATRIX_CLASS

Product = Callable[..., torch.Tensor]


def can_round(module: nn.Module) -> bool:
    """Whether :func:`add_rounding` knows the kind of ``module``."""
    return multiplies(module) or convolves(module) or normalizes(module) or isinstance(module, nn.Embedding)


def normalizes(module: nn.Module) -> bool:
    """Whether ``module`` is a norm over the features of each row."""
    return isinstance(module, nn.LayerNorm | nn.RMSNorm)


def convolves(module: nn.Module) -> TypeGuard[nn.Conv1d | nn.Conv2d]:
    """Whether ``module`` is a convolution."""
    return isinstance(module, nn.Conv1d | nn.Conv2d)


def multiplies(module: nn.Module) -> bool:
    """Whether ``module`` is one matrix product with its weight."""
    return isinstance(module, nn.Linear) or type(module).__name__ == MATRIX_CLASS


def leaves_rounding_only(module: nn.Module) -> bool:
    """Whether a norm of so few features passes no gradient on, but what the rounding of its terms leaves.

    A feature less its mean is zero, and one or two over their spread are signs, whatever their size. Terms
    that cancel leave nothing at all or a unit of theirs, by chance: what moves with the gradient is no bound.
    """
    match module:
        case nn.LayerNorm():
            return math.prod(module.normalized_shape) <= 2
        case nn.RMSNorm():
            return math.prod(module.normalized_shape) == 1
    return False


def add_rounding(module: nn.Module, noise_seed: int, *, input_gradient_only: bool = False) -> None:
    """Makes every result and every gradient of ``module`` off by as much as another order could make it."""

    def forward(x: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
        parameters = [p for p in module._parameters.values() if p is not None]
        rounded: torch.Tensor = _Rounded.apply(
            _value(module), _magnitude(module, x.detach()), noise_seed, input_gradient_only, x, *parameters
        )
        return rounded

    if convolves(module):  # one that takes rows makes images of them in ``forward``
        module._conv_forward = forward  # type: ignore[assignment,method-assign]
    else:
        module.forward = forward


def signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A tensor of ones and minus ones."""
    return (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1).to(like.device)


def _value(module: nn.Module) -> Product:
    """What a module computes, as a function of its argument and its parameters."""
    match module:
        case nn.Linear():
            return F.linear
        case nn.Embedding():
            return F.embedding
        case nn.Conv1d():
            return partial(F.conv1d, stride=module.stride, padding=module.padding)
        case nn.Conv2d():
            return partial(F.conv2d, stride=module.stride, padding=module.padding)
        case _ if multiplies(module):
            return torch.matmul
        case nn.LayerNorm():
            return lambda x, weight, bias=None: F.layer_norm(
                x, module.normalized_shape, weight, bias, module.eps
            )
        case nn.RMSNorm():
            return lambda x, weight: F.rms_norm(x, module.normalized_shape, weight, module.eps)
    raise TypeError(f"{type(module).__name__} is not tensor parallel")


def _magnitude(module: nn.Module, x: torch.Tensor) -> Product:
    """The same function of magnitudes: how large its terms are. ``x`` is the argument itself."""
    if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return _value(module)
    mean = x.mean(-1, keepdim=True) if isinstance(module, nn.LayerNorm) else x.new_zeros(())
    eps = module.eps or torch.finfo(x.dtype).eps
    spread = ((x - mean).square().mean(-1, keepdim=True) + eps).sqrt()

    def normed(size: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
        return (size + mean.abs()) / spread * weight + bias

    return normed


class _Rounded(torch.autograd.Function):
    """``value`` of some tensors; it and its gradients are off by what a sum of such ``magnitude`` may be."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Product,
        magnitude: Product,
        seed: int,
        input_gradient_only: bool,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.value, ctx.magnitude, ctx.seed = value, magnitude, seed
        ctx.input_gradient_only = input_gradient_only
        ctx.save_for_backward(*tensors)
        result = value(*tensors)
        if input_gradient_only or not tensors[0].is_floating_point():
            return result
        return _off(result, magnitude(*(t.abs() for t in tensors)), _terms(*tensors), seed)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[4:]
        exact = _gradients(ctx.value, tensors, wanted, gradient)
        sizes = _gradients(ctx.magnitude, [t.abs() for t in tensors], wanted, gradient.abs())
        of_input, of_parameter = _backward_terms(gradient, *tensors)
        found = [
            e
            if e is None or s is None or (i and ctx.input_gradient_only)
            else _off(e, s, of_parameter if i else of_input, ctx.seed)
            for i, (e, s) in enumerate(zip(exact, sizes, strict=True))
        ]
        return (None, None, None, None, *found)


def rounded_softmax(scores: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    """``scores.softmax(dim)``, whose gradient is off by the rounding of the terms that it subtracts.

    They are equal where one score is far above the others: what is left of them then is rounding.
    """
    result: torch.Tensor = _RoundedSoftmax.apply(scores, dim, generator)
    return result


class _RoundedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
        result = scores.softmax(dim)
        ctx.save_for_backward(result)
        ctx.dim, ctx.generator = dim, generator
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,), (result,) = gradients, ctx.saved_tensors
        mean = (result * gradient).sum(ctx.dim, keepdim=True)
        size = gradient.abs() + (result * gradient.abs()).sum(ctx.dim, keepdim=True)
        error = torch.finfo(result.dtype).eps * size * signs(size, ctx.generator)
        return result * (gradient - mean + error), None, None


def _terms(x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor) -> int:
    """How many products an element of the result adds up; only convolutions have weights of over two dims."""
    return weight[0].numel() if weight.dim() > 2 else x.shape[-1]


def _backward_terms(
    gradient: torch.Tensor, _: torch.Tensor, weight: torch.Tensor, *__: torch.Tensor
) -> tuple[int, int]:
    """The same of an element of the gradients of the input, and of the parameters."""
    if weight.dim() > 2:
        return weight[:, 0].numel(), gradient.numel() // gradient.shape[1]
    width = gradient.shape[-1]
    return width, gradient.numel() // max(width, 1)


def _gradients(
    function: Product, tensors: Sequence[torch.Tensor], wanted: Sequence[bool], gradient: torch.Tensor
) -> list[torch.Tensor | None]:
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
        result = function(*leaves)
    found = iter(torch.autograd.grad(result, [leaf for leaf in leaves if leaf.requires_grad], gradient))
    return [next(found) if w else None for w in wanted]


def _off(exact: torch.Tensor, magnitude: torch.Tensor, terms: int, seed: int) -> torch.Tensor:
    """``exact`` with an error of ``terms`` rounding units, of equal signs wherever the shape is the same."""
    unit = terms * torch.finfo(exact.dtype).eps / 2
    return exact + unit * magnitude * signs(exact, torch.Generator().manual_seed(seed))
