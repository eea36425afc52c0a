"""Comparing what two trainings left: bit for bit, or within a bound for each tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
import torch

from fuzzshard.engines.rounding import largest
from fuzzshard.oracles.bound import OF_NOISE, OF_NOISE_IN_HALF, Limits
from fuzzshard.oracles.compare import largest_distance, same_bits
from fuzzshard.subject.record import Place, Record
from fuzzshard.subject.report import KINDS, Kind, Reached, Row

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
    """Two records side by side; ``first`` is the first place in time that differs.

    ``undecided`` is the first output or loss whose bound is so large that it says nothing: what
    comes in that step is not compared, nor later ones. ``noise`` are parameters of whose gradients
    or values the same is true, since they are sums that cancel: each is left out from that step
    on.
    """

    rows: dict[Kind, Row]
    first: Place | None = None
    undecided: Place | None = None
    elsewhere: Place | None = None
    noise: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_bitwise(self) -> bool:
        """Whether all bits are equal."""
        return all(row.reached == "bitwise" for row in self.rows.values())


def limits_in_float64(expected: Record, shaken: Record) -> Limits[Place]:
    """Return what rounding explains between two runs in float64, of which one has ``shaken``
    values: sums that cancel leave nothing but noise.
    """
    limits = Limits(expected.tensors, _alone, SAME_IN_FLOAT64, OF_NOISE)
    limits.move(expected.tensors, shaken.tensors)
    return limits


def limits_by_noise(expected: Record, shaken: Iterable[Record], eps: float) -> Limits[Place]:
    """Return what rounding explains, going by runs on values that are ``shaken`` by ``eps``.

    Before training nothing is rounded.
    """
    trained = {place: tensor for place, tensor in expected.tensors.items() if place.step >= 0}
    limits = Limits(trained, _alone, LAST_BITS * eps, OF_NOISE_IN_HALF)
    for run in shaken:
        limits.move(trained, run.tensors)
    return limits


def _alone(place: Place) -> Place:
    """Each tensor has a scale of its own: no mistake hides behind a larger one."""
    return place


def compare(
    expected: Record,
    observed: Record,
    limits: Limits[Place] | None,
    precision: str,
    skip: Mapping[Kind, Skip],
    elsewhere: Place | None = None,
) -> Comparison:
    """Compare what ``expected`` holds with what ``observed`` holds at the same places.

    Intermediate outputs that the parallelised model does not have in the same shape are not due:
    modules may work on parts there. Without ``limits`` all bits have to be equal. Nothing of the
    kinds in ``skip`` is compared. ``elsewhere`` is undecided on some rank, with which this one
    shares gradients.
    """
    comparison = Comparison({}, elsewhere=elsewhere)
    for kind in KINDS:
        row = Row(kind=kind, precision=precision)
        for place, tensor in expected.of(kind).items():
            if skip.get(kind) == "not due" or not _comparable(place, tensor, observed):
                continue
            if kind in skip or _says_nothing(place, comparison):
                row = _without_one(row)
            else:
                row = _judge(row, place, tensor, observed.tensors.get(place), limits, comparison)
        comparison.rows[kind] = row
    return comparison


def _comparable(place: Place, expected: torch.Tensor | None, observed: Record) -> bool:
    if place.kind != "outputs":
        return True
    other = observed.tensors.get(place)
    if other is None or expected is None:
        return False  # of another rank's microbatch, or of a module that is not called
    return place.name.startswith("output") or other.shape == expected.shape


def _says_nothing(place: Place, comparison: Comparison) -> bool:
    """Whether rounding alone has changed what comes before ``place`` by a large part."""
    undecided, elsewhere = comparison.undecided, comparison.elsewhere
    if undecided is not None and place.step >= undecided.step:
        return True
    own = place.kind in ("outputs", "loss")  # of this rank, until parameters are updated
    if elsewhere is not None and place.step - own >= elsewhere.step:
        return True
    return place.name in comparison.noise and place.step >= comparison.noise[place.name]


def _without_one(row: Row) -> Row:
    return msgspec.structs.replace(row, left_out=row.left_out + 1)


def _judge(
    row: Row,
    place: Place,
    expected: torch.Tensor | None,
    observed: torch.Tensor | None,
    limits: Limits[Place] | None,
    comparison: Comparison,
) -> Row:
    reached, part = _reached(place, expected, observed, limits)
    if part == float("inf"):
        if place.kind in ("outputs", "loss"):
            comparison.undecided = comparison.undecided or place
        else:
            earliest = min(place.step, comparison.noise.get(place.name, place.step))
            comparison.noise[place.name] = earliest
        return _without_one(row)
    if reached == "different" and (
        comparison.first is None or moment(place) < moment(comparison.first)
    ):
        comparison.first = place
    order: tuple[Reached, ...] = ("bitwise", "rounding", "different")
    return msgspec.structs.replace(
        row,
        compared=row.compared + 1,
        differing=row.differing + (reached == "different"),
        reached=max(row.reached, reached, key=order.index),
        worst=max(row.worst, part if reached == "rounding" else 0.0),
    )


def _reached(
    place: Place,
    expected: torch.Tensor | None,
    observed: torch.Tensor | None,
    limits: Limits[Place] | None,
) -> tuple[Reached, float]:
    """How far two tensors are equal, and which part of the bound their difference takes."""
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
        return "rounding", float("inf")
    farthest = largest_distance(expected, observed)
    if farthest > limit or farthest == float("inf"):
        return "different", 0.0
    return "rounding", farthest / limit if limit else 0.0


def moment(place: Place) -> tuple[int, int, int]:
    """When a tensor was seen, for comparing: within a step kinds are in the order of time."""
    after_training = place.kind == "state dict"
    return (place.step, KINDS.index(place.kind) if not after_training else 99, place.microbatch)
