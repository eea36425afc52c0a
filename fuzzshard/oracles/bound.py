"""How far rounding alone may take the values of a run from those of the reference.

Rounding is smaller by nine orders of magnitude in float64 than in float32, and a mistake is not.
So one tolerance for each dtype does, however much a model amplifies: float64 leaves room for
nearly ten digits.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import dtypes_in_play
from fuzzshard.engines.base import DTYPES
from fuzzshard.oracles.compare import Difference
from fuzzshard.parts.oracles import tensor_oracle
from fuzzshard.training.trace import Key, Trace

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""What an element may differ by, relative to the largest that the op leaves, or to one if that is
smaller.
"""

MARGIN = 16.0
"""How many times closer to float64 than the tolerance the reference has to be for its digits to be
judged.

An engine rounds otherwise, and the largest distance of any element is a sample of what rounding
may do.
"""


OF_COARSER = 1e-3
"""How much an engine may have of the distance that a coarser precision takes the reference.

Where terms cancel, an optimizer makes a step of what rounding left. float64 rounds 2**29 times
finer than float32, but Adam divides by the size of a gradient, so its steps are not that much
smaller: parameters before a batch norm had 2e-5 of the distance
(corpus/regressions/adam-steps-of-gradients-that-cancel.json).
"""


def _used(case: Case) -> set[torch.dtype]:
    """Every dtype that ``case`` computes something in."""
    used = {*dtypes_in_play(case), *(op.casts_to for op in case.schedule if op.casts_to)}
    return {DTYPES[dtype] for dtype in used}


def tolerance(case: Case) -> float:
    """The tolerance of the coarsest dtype that ``case`` computes something in."""
    return max(TOLERANCES[dtype] for dtype in _used(case))


def last_bit(case: Case) -> float:
    """What the last bit of a number is worth, relative to the number, in that dtype."""
    return max(torch.finfo(dtype).eps for dtype in _used(case))


def margin_of_last_bits(case: Case) -> float:
    """How many times closer than the tolerance a run from parameters that differ in their last
    bits has to be; once, where the tolerance itself is a few last bits: in half precision.
    """
    return MARGIN if tolerance(case) > 16 * MARGIN * last_bit(case) else 1.0


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise |a - b| in fp64: 0 between equal infinities, inf between NaN and a number."""
    error = (a.double() - b.double()).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, error.nan_to_num(nan=float("inf"), posinf=float("inf")))


def largest(tensor: torch.Tensor) -> float:
    """The largest magnitude of a finite element; 0 where there is none."""
    sizes = tensor.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(sizes.max()) if sizes.numel() else 0.0


@dataclasses.dataclass(frozen=True)
class Bound:
    """What rounding explains of the differences from ``reference``, in a run of ``case``.

    ``other`` is the reference in another precision, and ``factor`` how much of the distance
    between the two an engine may have: terms that cancel leave nothing but rounding, as large as
    theirs. Without a factor, what is not ``margin`` times closer to ``other`` than the tolerance
    has lost its digits: any difference is rounding.
    """

    case: Case
    reference: Trace
    other: Trace | None = None
    factor: float = 0.0
    margin: float = MARGIN

    def excess(self, difference: Difference) -> tuple[bool, float, float]:
        """Whether rounding explains the difference; its error and the bound."""
        if (both := difference.both) is None:
            return False, float("inf"), 0.0
        error = largest_distance(*both)
        limit = self.limit(difference.key, both[0].dtype)
        return error <= limit, error, limit

    def limit(self, key: Key, dtype: torch.dtype) -> float:
        """The largest error that rounding explains; none in integers.

        All that the op leaves has one scale: a sum of several gradients may cancel in one of them,
        and outputs in their loss. There is none where the reference has nothing to compare with.
        """
        if not dtype.is_floating_point:
            return 0.0
        size, moved = self._scales.get((key.op, key.oracle), (float("inf"), 0.0))
        if key.rule.is_loss:
            size = max(size, self._forwards.get(key.op, 0.0))
        limit = tolerance(self.case) * max(1.0, size)
        if self.factor:
            return limit + self.factor * moved
        return limit if self.margin * moved <= limit else float("inf")

    @functools.cached_property
    def _scales(self) -> dict[tuple[int, str], tuple[float, float]]:
        """The largest element, and the largest distance of one, of each op and oracle."""
        scales: dict[tuple[int, str], tuple[float, float]] = {}
        for key, observation in self.reference.tensors.items():
            if (tensor := observation.tensor) is not None:
                size, moved = scales.get((key.op, key.oracle), (0.0, 0.0))
                scales[key.op, key.oracle] = (
                    max(size, largest(tensor)),
                    max(moved, self._moved(key, tensor)),
                )
        return scales

    @functools.cached_property
    def _forwards(self) -> dict[int, float]:
        """The largest element of what each forward leaves."""
        sizes: dict[int, float] = {}
        for (op, oracle), (size, _) in self._scales.items():
            if tensor_oracle(oracle).of_forward:
                sizes[op] = max(sizes.get(op, 0.0), size)
        return sizes

    def _moved(self, key: Key, tensor: torch.Tensor) -> float:
        """How far the other precision takes a tensor of the reference."""
        other = None if self.other is None else self.other.tensors[key].tensor
        return 0.0 if other is None else largest_distance(other, tensor)


def largest_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest :func:`distance` of two elements."""
    if not a.numel():
        return 0.0
    error = float((a.double() - b.double()).abs().max())
    return error if math.isfinite(error) else float(distance(a, b).max())
