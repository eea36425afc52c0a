"""What groups round parameters to before modules compute with them, and last bits that change to
measure what rounding does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from fuzzshard.analysis.dtypes import roundings
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.model.statements import seed_of
from fuzzshard.program.run import execute

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Rounds every element by itself; what is rounded already stays what it is."""


def rounding_functions(case: Case, found: Inferred) -> Mapping[str, Rounding]:
    """Return those of the parameters that have one, by name."""
    texts = roundings(case, found)
    functions = {
        text: execute([f"rounded = lambda p: {text}"], {})["rounded"] for text in {*texts.values()}
    }
    return {fqn: functions[text] for fqn, text in texts.items()}


def largest(tensor: torch.Tensor) -> float:
    """The largest magnitude of a finite element; 0 where there is none."""
    sizes = tensor.detach().double().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(sizes.max()) if sizes.numel() else 0.0


class Shake(NamedTuple):
    """By how much of itself every number changes that a model is trained on, up or down: chance
    decides, seeded by ``seed`` and the name of a tensor.

    With ``in_rings`` attention rounds as a ring of ranks does (:meth:`Ring.around`).
    """

    size: float
    seed: int = 0
    in_rings: bool = False

    @torch.no_grad()
    def apply(self, tensor: torch.Tensor, name: object) -> None:
        """Changes a tensor in place."""
        if tensor.is_floating_point():
            tensor.mul_(1 + self.size * self._signs(tensor, name))

    def of_sum(self, tensor: torch.Tensor, name: object, *factors: float) -> torch.Tensor:
        """Return a tensor as if each of its elements were a sum of terms, the largest of which is
        the product of ``factors``.
        """
        return tensor + self.size * math.prod(factors) * self._signs(tensor, name)

    def _signs(self, tensor: torch.Tensor, name: object) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed_of(self.seed, name))
        signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
        return signs.to(tensor)


class Ring:
    """One call of attention that rounds as ranks do that have a part of the keys each.

    They put results of parts together by differences of them (``_SDPAMerger`` in
    torch/distributed/tensor/experimental/_context_parallel/_attention.py). So each element is as
    exact as the largest value is, although a softmax where one key counts passes the others'
    zeros on.

    The backward of a kernel makes the weights anew: of scores, of which it subtracts what the
    forward has kept. What rounding leaves of large scores becomes a power of e, up to infinity.
    """

    def __init__(self, by: Shake) -> None:
        self.by = by
        self.query = self.key = self.value = self.gradient = 0.0
        self.weight = 1.0

    @classmethod
    def around(cls, module: nn.Module, by: Shake) -> None:
        """Lets a ``module`` that maps queries, keys and values to a tensor round so."""
        calls: list[Ring] = []

        def before(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            calls.append(cls(by))
            return calls[-1].takes(*args)

        def after(_: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
            return calls.pop().gives(output)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    def takes(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return tensors whose gradients differ: a gradient of scores is a difference of products
        of the output's gradient and of values.
        """
        self.query, self.key, self.value = largest(query), largest(key), largest(value)
        left = abs(self.by.size) * self.query * self.key * query.shape[-1] ** 0.5
        self.weight = float(torch.tensor(left, dtype=torch.float64).exp())
        terms = ("query", "value", "key"), ("key", "value", "query"), ("value",)
        given = tuple(x.view_as(x) for x in (query, key, value))
        for x, (name, *others) in zip(given, terms, strict=True):
            if x.requires_grad:
                hook = functools.partial(self._gradient_of, name, others)
                x.register_hook(hook)  # type: ignore[no-untyped-call]
        return given

    def _gradient_of(
        self, name: str, others: Sequence[str], gradient: torch.Tensor
    ) -> torch.Tensor:
        factors = (getattr(self, other) for other in others)
        return self.by.of_sum(gradient, name, self.gradient, self.weight, *factors)

    def gives(self, output: torch.Tensor) -> torch.Tensor:
        """Return another output; notes how large its gradient is."""
        output = self.by.of_sum(output, "output", self.value)
        if output.requires_grad:
            output.register_hook(self._note)  # type: ignore[no-untyped-call]
        return output

    def _note(self, gradient: torch.Tensor) -> None:
        self.gradient = largest(gradient)
