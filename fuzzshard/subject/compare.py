"""Comparing what two trainings left: bit for bit, or within a bound for each tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Literal

import torch

from fuzzshard.engines.rounding import largest
from fuzzshard.oracles.bound import Limits
from fuzzshard.oracles.compare import largest_distance, same_bits
from fuzzshard.subject.record import Place, Record
from fuzzshard.subject.report import KINDS, ORDER, Kind, Reached, Row, module_of

SAME_IN_FLOAT64 = 1e-6
"""What differs by no more of its largest value in float64 was rounding in a coarser precision
(note 0026).
"""

LAST_BITS = 4.0
"""How many last bits of its largest value any tensor may be off."""

Skip = Literal["not due", "left out"]
"""Why a kind is not compared: the two need not be equal, or nothing can be told."""


@dataclasses.dataclass
class Comparison:
    """Two records side by side: how far each tensor is equal, and which part of its limit the
    difference takes; None for what is left out.
    """

    precision: str
    results: dict[Place, tuple[Reached, float] | None] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> dict[Kind, Row]:
        """Return a row for each kind of tensor: outputs, gradients, parameters, ..."""
        return {kind: self._row(kind) for kind in KINDS}

    def _row(self, kind: Kind) -> Row:
        results = [result for place, result in self.results.items() if place.kind == kind]
        told = [result for result in results if result is not None]
        reached = [reached for reached, _ in told]
        return Row(
            kind=kind,
            precision=self.precision,
            compared=len(told),
            left_out=len(results) - len(told),
            differing=reached.count("different"),
            reached=max(reached, key=ORDER.index, default="bitwise"),
            worst=max((part for _, part in told), default=0.0),
        )

    @property
    def first(self) -> Place | None:
        """The first place in time that differs."""
        wrong = (p for p, result in self.results.items() if result and result[0] == "different")
        return min(wrong, key=moment, default=None)

    @property
    def is_bitwise(self) -> bool:
        """Whether all bits are equal."""
        return all(result is None or result[0] == "bitwise" for result in self.results.values())


def limits_of(expected: Record, of_largest: float, of_noise: float) -> Limits[Place]:
    """Return what rounding explains, before values are shaken.

    Each tensor has a scale of its own: no mistake hides behind a larger one. Before training
    nothing is rounded.
    """
    trained = {place: tensor for place, tensor in expected.tensors.items() if place.step >= 0}
    return Limits(trained, lambda place: place, of_largest, of_noise)


def compare(
    expected: Record,
    observed: Record,
    limits: Limits[Place] | None,
    precision: str,
    skip: Mapping[Kind, Skip],
) -> Comparison:
    """Compare what ``expected`` holds with what ``observed`` holds at the same places.

    Intermediate outputs of a module are not due if the parallelised model has some in another
    shape: it works on parts, or on rows in another order. Without ``limits`` all bits have to be
    equal. Nothing of the kinds in ``skip`` is compared.
    """
    comparison = Comparison(precision)
    outputs = expected.of("outputs").items()
    pairs = ((place, due, observed.tensors.get(place)) for place, due in outputs)
    reshaped = {
        module_of(place.name)
        for place, due, seen in pairs
        if due is not None and seen is not None and due.shape != seen.shape
    } - {""}
    for place, due in expected.tensors.items():
        seen = observed.tensors.get(place)
        is_due = skip.get(place.kind) != "not due" and place.name not in observed.elsewhere
        if is_due and _comparable(place, due, seen, reshaped):
            left_out = place.kind in skip and place.step >= 0  # before training all is known
            result = None if left_out else _reached(place, due, seen, limits)
            comparison.results[place] = result
    return comparison


def _comparable(
    place: Place,
    expected: torch.Tensor | None,
    observed: torch.Tensor | None,
    reshaped: Set[str],
) -> bool:
    if place.kind != "outputs":
        return True
    if observed is None or expected is None:
        return False  # of another rank's microbatch, or of a module that is not called
    same_rows = observed.shape == expected.shape and module_of(place.name) not in reshaped
    return same_rows or place.name.startswith("output")


def _reached(
    place: Place,
    expected: torch.Tensor | None,
    observed: torch.Tensor | None,
    limits: Limits[Place] | None,
) -> tuple[Reached, float] | None:
    """Return how far two tensors are equal, and which part of the limit their difference takes;
    None where even zeros could not be told from the expected one.
    """
    if expected is None or observed is None:
        other = expected if observed is None else observed
        equal = other is None or (place.kind == "gradients" and not other.any())
        return ("bitwise" if equal else "different"), 0.0
    if same_bits(expected, observed):
        return "bitwise", 0.0
    if expected.shape != observed.shape or limits is None:
        return "different", 0.0
    limit = limits.limit(place, expected.dtype)
    if limit > largest(expected) > 0:
        return None
    farthest = largest_distance(expected, observed)
    if farthest > limit or farthest == float("inf"):
        return "different", 0.0
    return "rounding", farthest / limit if limit else 0.0


def moment(place: Place) -> tuple[int, int, int]:
    """Return when a tensor was seen, to compare; within a step kinds are in order of time."""
    return place.step, KINDS.index(place.kind), place.microbatch
