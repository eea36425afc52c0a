"""How far rounding alone may move each tensor: from noise twins of the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.schedule import Step
from fuzzshard.oracles.compare import Difference
from fuzzshard.training.trace import Key, Trace, cut

TERMWISE_FACTOR = 4.0
"""Slack of the termwise bound: two engines may each be off by it, with opposite signs."""

FEEDBACK_FACTOR = 16.0
"""Slack of the scale a noise twin measures: two samples of a maximum underestimate it."""


@dataclasses.dataclass(frozen=True)
class NoiseBound:
    """Bounds from the reference and its noise twins.

    Gradients before the first step are bounded element by element: the twin is off there by exactly
    n u mean|g_i|, the a-priori bound. Later, rounding has fed back through parameters and
    activations, and a tensor may move by the largest amount that any element of a twin moved. A tensor
    that no twin moves (the forward of the first step, say) must be bitwise equal.
    """

    case: Case
    reference: Trace
    twins: Sequence[Trace]

    def excess(self, difference: Difference) -> tuple[float, float]:
        """The largest error and its bound, at the element that exceeds its bound most; inf for no number."""
        observed, expected = difference.observed, difference.expected
        if observed is None or expected is None or observed.shape != expected.shape:
            return float("inf"), 0.0
        error = (observed.double() - expected.double()).abs()
        bound = self._bound(difference.key, difference, expected)
        both_nan = observed.isnan() & expected.isnan()
        same = both_nan | (observed == expected)
        error = torch.where(same, 0.0, error.nan_to_num(nan=float("inf")))
        if error.numel() == 0:
            return 0.0, 0.0
        worst = int((error - bound).argmax())
        return float(error.flatten()[worst]), float(bound.expand_as(error).flatten()[worst])

    def _bound(self, key: Key, difference: Difference, expected: torch.Tensor) -> torch.Tensor:
        moved = []
        for twin in self.twins:
            truth, other = self.reference.tensors[key].tensor, twin.tensors[key].tensor
            assert truth is not None
            if other is None:
                return torch.zeros((), dtype=torch.float64)
            moved.append((other.double() - truth.double()).abs())
        largest = torch.stack(moved).amax(0)
        if key.oracle == "gradient" and key.op < self._first_step():
            eps = torch.finfo(expected.dtype).eps
            return TERMWISE_FACTOR * (cut(largest, difference.pieces) + eps * expected.double().abs())
        return FEEDBACK_FACTOR * largest.max() if largest.numel() else largest.new_zeros(())

    def _first_step(self) -> int:
        ops = self.case.schedule
        return next((i for i, op in enumerate(ops) if isinstance(op, Step)), len(ops))
