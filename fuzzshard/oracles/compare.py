"""Where an engine's trace differs bit for bit from the reference's."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from fuzzshard.engines.rounding import numbers
from fuzzshard.training.trace import Key, Pieces, Trace, cut


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return elementwise |a - b| in fp64: inf between a number and what is infinite or no number,
    0 between two of these, as the order of additions decides which it is.
    """
    error = (a.double() - b.double()).abs()
    lost = ~(a.isfinite() | b.isfinite())
    return torch.where(lost, 0.0, error.nan_to_num(nan=float("inf"), posinf=float("inf")))


def largest_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest :func:`distance` of two elements."""
    return largest_distances([(a, b)])[0]


def largest_distances(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Return :func:`largest_distance` of each pair."""
    errors = ((a.double() - b.double()).abs() for a, b in pairs)
    found = numbers([error.max() if error.numel() else error.sum() for error in errors])
    return [
        error if math.isfinite(error) else float(distance(*pair).max())
        for error, pair in zip(found, pairs, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class Difference:
    """A tensor that is not bitwise what the reference has; ``pieces`` say which part of the
    whole.
    """

    key: Key
    observed: torch.Tensor | None
    expected: torch.Tensor | None
    pieces: Pieces

    @property
    def both(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Observed and expected, where they are tensors of one shape, dtype and device."""
        a, b = self.observed, self.expected
        if a is None or b is None or (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return None
        return a, b

    @functools.cached_property
    def error(self) -> float:
        """The largest distance of two elements; infinite where there is none."""
        return float("inf") if self.both is None else largest_distance(*self.both)

    @property
    def comparable(self) -> bool:
        """Whether there is an error to bound."""
        return self.both is not None


def rank_of(key: Key) -> tuple[int, int, str]:
    """Sorts keys by first appearance: op, then by the oracles, then name."""
    return key.op, key.rule.place, key.name


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether bits are equal; any NaN equals any NaN, and 0.0 equals -0.0 (sums of zeros
    differ in sign).
    """
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def unequal(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> set[int]:
    """Return which pairs differ by :func:`same_bits`. All of one dtype are compared at once:
    whether two tensors are equal, a GPU says when it has done all that it was asked for before.
    """
    found = set()
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = defaultdict(list)
    for number, (a, b) in enumerate(pairs):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            found.add(number)
        elif a is not b:
            alike[a.dtype, a.device].append(number)
    for members in alike.values():
        a, b = (torch.cat([pairs[n][side].reshape(-1) for n in members]) for side in (0, 1))
        if not same_bits(a, b):
            apart = ~((a == b) | (a.isnan() & b.isnan()))
            ends = torch.tensor([pairs[n][0].numel() for n in members]).cumsum(0)
            places = torch.searchsorted(ends, apart.nonzero().flatten().cpu(), right=True)
            found.update(members[place] for place in {*places.tolist()})
    return found


def agree(
    shape: torch.Size, one: tuple[torch.Tensor, Pieces], other: tuple[torch.Tensor, Pieces]
) -> bool:
    """Return whether two pieces of a tensor of ``shape`` are bitwise equal where they overlap, and
    do overlap.
    """
    if one[1] == other[1]:
        return same_bits(one[0], other[0])
    numbers = torch.arange(shape.numel()).view(shape)
    places = [cut(numbers, pieces).flatten() for _, pieces in (one, other)]
    if any(
        tensor.numel() != place.numel()
        for (tensor, _), place in zip((one, other), places, strict=True)
    ):
        return False
    shared = [torch.isin(places[i], places[1 - i]) for i in (0, 1)]
    values = [t.flatten()[s.to(t.device)] for (t, _), s in zip((one, other), shared, strict=True)]
    return bool(shared[0].any()) and same_bits(values[0], values[1])


def differences(reference: Trace, observed: Trace) -> list[Difference]:
    """Return all differences in order. What ``observed`` lacks, its engine does not promise."""
    found: list[Difference] = []
    held: list[Difference] = []
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for key, truth in reference.tensors.items():
        got = observed.tensors.get(key)
        if got is None:
            continue
        if truth.tensor is None or got.tensor is None:
            if truth.tensor is not got.tensor:
                found.append(Difference(key, got.tensor, truth.tensor, got.pieces))
            continue
        expected = cut(truth.tensor, got.pieces)
        match key.rule.dtype:
            case "observed":
                expected = expected.to(got.tensor.dtype)
            case "wider":
                expected = expected.to(torch.promote_types(expected.dtype, got.tensor.dtype))
        if key.rule.is_state:
            expected = expected.to(got.tensor.device)
        held.append(Difference(key, got.tensor, expected, got.pieces))
        pairs.append((got.tensor, expected))
    found += [held[number] for number in unequal(pairs)]
    return sorted(found, key=lambda d: rank_of(d.key))
