"""What groups round parameters to before modules compute with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.distributed.tensor import DTensor

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import roundings
from fuzzshard.case.facts import Facts
from fuzzshard.program.run import execute

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Rounds every element by itself; what is rounded already stays what it is."""


def rounding_functions(case: Case, found: Facts) -> Mapping[str, Rounding]:
    """Return those of the parameters that have one, by name."""
    texts = roundings(case, found)
    functions = {
        text: execute([f"rounded = lambda p: {text}"], {})["rounded"] for text in {*texts.values()}
    }
    return {fqn: functions[text] for fqn, text in texts.items()}


@torch.no_grad()
def shake(tensor: torch.Tensor, size: float) -> None:
    """Multiplies the elements by 1 + ``size`` and 1 - ``size`` in turn, those of this rank."""
    tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    factors = torch.full_like(tensor, size).flatten()
    factors[::2] *= -1
    tensor.mul_(1 + factors.view_as(tensor))
