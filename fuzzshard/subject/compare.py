"""Comparing what two trainings left: bit for bit, or within a bound for each tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import torch

from fuzzshard.engines.rounding import largest
from fuzzshard.oracles.compare import largest_distance
from fuzzshard.subject.record import Place, Record
from fuzzshard.subject.report import KINDS, Kind, Reached, Row

SAME_IN_FLOAT64 = 1e-6
"""What differs by no more of its largest value in float64 was rounding in a coarser precision
(note 0026).
"""

NOISE = 1e-11
"""The same against the largest value of its kind in that step: sums that cancel leave noise."""

FACTOR = 8.0
"""How many times as far as the farthest perturbed run an engine may be."""

ROUNDINGS = 4.0
"""What any tensor may differ by, in units of the precision at its largest value."""

Skip = Literal["not due", "left out"]
"""Why a kind is not compared: the two need not be equal, or nothing can be told."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """``allowed`` is the largest difference that rounding explains, of a tensor with its expected
    value; ``can_say_nothing``: where it is more than the largest value, from which not even zeros
    could be told then.
    """

    allowed: Callable[[Place, torch.Tensor], float]
    can_say_nothing: bool = False


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


BITWISE = Bound(lambda _place, _expected: 0.0)
"""No difference is allowed."""


def float64_bound(expected: Record) -> Bound:
    """Return the bound for two runs in float64."""
    sizes: dict[tuple[int, Kind], float] = {}
    for place, tensor in expected.tensors.items():
        if tensor is not None:
            key = (place.step, place.kind)
            sizes[key] = max(sizes.get(key, 0.0), largest(tensor))

    def allowed(place: Place, tensor: torch.Tensor) -> float:
        noise = NOISE * sizes.get((place.step, place.kind), 0.0)
        return SAME_IN_FLOAT64 * largest(tensor) + noise

    return Bound(allowed)


def perturbed_bound(perturbed: Sequence[Record], eps: float) -> Bound:
    """Return the bound that perturbed runs of the plain model show, for a precision of ``eps``.

    Before training no difference is allowed.
    """

    def allowed(place: Place, tensor: torch.Tensor) -> float:
        if place.step < 0:
            return 0.0
        others = [other for run in perturbed if (other := run.tensors.get(place)) is not None]
        if any(other.shape != tensor.shape for other in others):
            return float("inf")  # rounding decides how much a module gets
        moved = [
            (other.double() - tensor.double()).abs().max().item()
            for other in others
            if tensor.numel()
        ]
        return FACTOR * max(moved, default=0.0) + ROUNDINGS * eps * largest(tensor)

    return Bound(allowed, can_say_nothing=True)


def compare(
    expected: Record,
    observed: Record,
    bound: Bound,
    precision: str,
    skip: Mapping[Kind, Skip],
    elsewhere: Place | None = None,
) -> Comparison:
    """Compare what ``expected`` holds with what ``observed`` holds at the same places.

    Intermediate outputs that the parallelised model does not have in the same shape are not due:
    modules may work on parts there. Nothing of the kinds in ``skip`` is compared. ``elsewhere`` is
    undecided on some rank, with which this one shares gradients.
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
                row = _judge(row, place, tensor, observed.tensors.get(place), bound, comparison)
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
    bound: Bound,
    comparison: Comparison,
) -> Row:
    reached, part = _reached(place, expected, observed, bound)
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
    place: Place, expected: torch.Tensor | None, observed: torch.Tensor | None, bound: Bound
) -> tuple[Reached, float]:
    """How far two tensors are equal, and which part of the bound their difference takes."""
    if expected is None or observed is None:
        other = expected if observed is None else observed
        equal = other is None or (place.kind == "gradients" and not other.any())
        return ("bitwise" if equal else "different"), 0.0
    if expected.shape != observed.shape:
        return "different", 0.0
    if expected.dtype == observed.dtype and same_bits(expected, observed):
        return "bitwise", 0.0
    if not expected.is_floating_point():
        return "different", 0.0
    allowed = bound.allowed(place, expected)
    if bound.can_say_nothing and allowed > largest(expected) > 0:
        return "rounding", float("inf")
    farthest = largest_distance(expected, observed)
    if farthest > allowed or farthest == float("inf"):
        return "different", 0.0
    return "rounding", farthest / allowed if allowed else 0.0


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape have the same bits."""
    flat = (one.contiguous().flatten(), two.contiguous().flatten())
    return torch.equal(*(tensor.view(torch.uint8) for tensor in flat))


def moment(place: Place) -> tuple[int, int, int]:
    """When a tensor was seen, for comparing: within a step kinds are in the order of time."""
    after_training = place.kind == "state dict"
    return (place.step, KINDS.index(place.kind) if not after_training else 99, place.microbatch)
