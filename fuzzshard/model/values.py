"""Tensors from names: every parameter, input and target is a function of its name alone."""

from __future__ import annotations

from typing import Literal

import torch

from fuzzshard.model.statements import seed_of

Distribution = Literal["gaussian", "dyadic"]


def named_values(
    distribution: Distribution, shape: tuple[int, ...], dtype: torch.dtype, *name: object
) -> torch.Tensor:
    """A CPU tensor seeded by ``name``.

    ``dyadic``: -2 to 2 in steps of a half, without 0, so that products and short sums are exact in
    fp32. ``gaussian``: standard normal, drawn in fp64.
    """
    generator = torch.Generator().manual_seed(seed_of(*name))
    if distribution == "dyadic":
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return (torch.randint(1, 5, shape, generator=generator) * sign).to(dtype) / 2
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def named_ids(size: int, shape: tuple[int, ...], *name: object) -> torch.Tensor:
    """Integer ids below ``size`` seeded by ``name``."""
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed_of(*name)))
