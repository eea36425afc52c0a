"""Where an engine's trace differs bit for bit from the reference's."""

from __future__ import annotations

import dataclasses

import torch

from fuzzshard.training.trace import Key, Piece, Trace, cut
from fuzzshard.verdict import ORACLES


@dataclasses.dataclass(frozen=True)
class Difference:
    """A tensor that is not bitwise what the reference has; ``pieces`` say which part of the whole."""

    key: Key
    observed: torch.Tensor | None
    expected: torch.Tensor | None
    pieces: tuple[Piece, ...]

    @property
    def comparable(self) -> bool:
        """Whether both sides are tensors of one shape, so that there is an error to bound."""
        observed, expected = self.observed, self.expected
        return (
            observed is not None
            and expected is not None
            and observed.shape == expected.shape
            and observed.dtype == expected.dtype
        )


def rank_of(key: Key) -> tuple[int, int, str]:
    """Sorts keys by first appearance: op, then :data:`ORACLES`, then name."""
    return key.op, ORACLES.index(key.oracle), key.name


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality; any NaN equals any NaN, and 0.0 equals -0.0 (sums of zeros differ in sign)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def differences(reference: Trace, observed: Trace) -> list[Difference]:
    """All differences in order. What ``observed`` did not record, its engine does not promise."""
    found = []
    for key, truth in reference.tensors.items():
        got = observed.tensors.get(key)
        if got is None:
            continue
        if truth.tensor is None or got.tensor is None:
            if truth.tensor is not got.tensor:
                found.append(Difference(key, got.tensor, truth.tensor, got.pieces))
            continue
        expected = cut(truth.tensor, got.pieces)
        if not same_bits(got.tensor, expected):
            found.append(Difference(key, got.tensor, expected, got.pieces))
    return sorted(found, key=lambda d: rank_of(d.key))
