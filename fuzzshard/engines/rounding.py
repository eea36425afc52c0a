"""What groups round parameters to before modules compute with them, and last bits that change to
measure what rounding does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import roundings
from fuzzshard.case.facts import Facts
from fuzzshard.model.statements import seed_of
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


class Shake(NamedTuple):
    """By how much of itself every number changes that a model is trained on, up or down: chance
    decides, seeded by ``seed`` and the name of a tensor.
    """

    size: float
    seed: int = 0

    @torch.no_grad()
    def apply(self, tensor: torch.Tensor, name: object) -> None:
        """Changes a tensor in place, of a distributed one what this rank has."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.is_floating_point():
            generator = torch.Generator().manual_seed(seed_of(self.seed, name))
            signs = torch.randint(0, 2, local.shape, generator=generator) * 2 - 1
            local.mul_(1 + self.size * signs.to(local))
