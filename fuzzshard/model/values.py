"""Tensors from names: every parameter, input and target is a function of its name alone."""

from __future__ import annotations

from typing import Literal

import torch

from fuzzshard.parts.statements import seed_of

Distribution = Literal["gaussian", "dyadic", "apart"]

APART = 6
"""Targets of one rank are 2 ** APART, those of the next 2 ** -APART, and after each backward they
change places, and so do gradients: sums over ranks and backwards have more bits than float16.
"""


def named_values(
    distribution: Distribution,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *name: object,
    exponent: int | None = None,
) -> torch.Tensor:
    """Return a CPU tensor seeded by ``name``.

    ``dyadic``: -2 to 2 in steps of a half, without 0, so that products and short sums are exact in
    fp32. ``gaussian``: standard normal, drawn in fp64. ``apart``: 2 ** ``exponent``, and where
    there is none, in a parameter, 1 or 2, once in each row of a matrix and zeros: a product of
    matrices adds up hardly anything, so that gradients of a backward are exact in half precision.
    """
    generator = torch.Generator().manual_seed(seed_of(*name))
    if distribution == "dyadic":
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return (torch.randint(1, 5, shape, generator=generator) * sign).to(dtype) / 2
    if distribution == "apart":
        if exponent is not None:
            return torch.full(shape, 2.0**exponent, dtype=dtype)
        values = torch.randint(1, 3, shape, generator=generator)
        if len(shape) > 1:
            rows = torch.arange(values[..., 0].numel()).view(*shape[:-1], 1)
            values *= torch.arange(shape[-1]) == rows % shape[-1]
        return values.to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def named_ids(size: int, shape: tuple[int, ...], *name: object) -> torch.Tensor:
    """Return integer ids below ``size`` seeded by ``name``."""
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed_of(*name)))
