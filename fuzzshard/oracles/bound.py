"""How far rounding alone may take the values of a run from those of the reference.

An engine adds the same terms in another order. What that does to a value is measured: the
reference trains again on numbers that differ in their last bits, and as far as its values move
then, times a factor, an engine may be off. A mistake is as wrong in float64 as in float32, and
rounding is a billion times smaller there (note 0026).
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import torch

from fuzzshard.analysis.dtypes import last_bit
from fuzzshard.case.case import Case
from fuzzshard.engines.rounding import largest_of_each
from fuzzshard.oracles.compare import Difference, largest_distances
from fuzzshard.training.trace import Key, Trace

OF_NOISE = 100.0
"""How many times as far an engine may be off as the reference moves when last bits change."""

OF_NOISE_IN_HALF = 4.0
"""The same where half precision computes: a hundred times its noise would be all digits it has."""

LAST_BITS = 16.0
"""How many last bits of the largest value an engine may be off where nothing moves."""


def half_of_the_digits(case: Case) -> float:
    """Return the last bits that are half of the digits, where nothing can be trained again."""
    return float(last_bit(case) ** -0.5)


K = TypeVar("K")
Tensors = Mapping[K, torch.Tensor | None]


class Limits(Generic[K]):
    """What rounding explains of differences from ``expected``: a part of the largest value,
    ``of_largest``, and a multiple ``of_noise`` of how far last bits :meth:`move` values.

    Tensors that ``scale_of`` gives one scale have one limit.
    """

    def __init__(
        self,
        expected: Tensors[K],
        scale_of: Callable[[K], Hashable],
        of_largest: float,
        of_noise: float,
    ) -> None:
        self._expected = expected
        self._scale_of = scale_of
        self._of_largest = of_largest
        self._of_noise = of_noise
        self._noise: defaultdict[Hashable, float] = defaultdict(float)

    def move(self, one: Tensors[K], other: Tensors[K]) -> None:
        """Takes in how far two runs on numbers that differ in their last bits are apart: without
        limit where rounding decides how many elements there are.
        """
        pairs = {
            key: (a, b)
            for key, a in one.items()
            if a is not None and (b := other.get(key)) is not None
        }
        alike = {key: pair for key, pair in pairs.items() if pair[0].shape == pair[1].shape}
        moved = dict(zip(alike, largest_distances([*alike.values()]), strict=True))
        for key in pairs:
            scale = self._scale_of(key)
            self._noise[scale] = max(self._noise[scale], moved.get(key, math.inf))

    def limit(self, key: K, dtype: torch.dtype) -> float:
        """Return the largest error that rounding explains; none in integers."""
        if not dtype.is_floating_point:
            return 0.0
        scale = self._scale_of(key)
        size = max(self._sizes[scale], torch.finfo(dtype).tiny)
        return self._of_noise * self._noise[scale] + self._share_of_largest(dtype) * size

    def _share_of_largest(self, dtype: torch.dtype) -> float:
        return self._of_largest

    def has_digits(self, key: K) -> bool:
        """Return whether the largest value of that scale could be told from none."""
        scale = self._scale_of(key)
        return self._of_noise * self._noise[scale] <= self._sizes[scale]

    @functools.cached_property
    def _sizes(self) -> defaultdict[Hashable, float]:
        """The largest element of each scale."""
        sizes: defaultdict[Hashable, float] = defaultdict(float)
        held = {key: tensor for key, tensor in self._expected.items() if tensor is not None}
        for key, size in zip(held, largest_of_each(held.values()), strict=True):
            scale = self._scale_of(key)
            sizes[scale] = max(sizes[scale], size)
        return sizes


class Bound(Limits[Key]):
    """The limits in a run of ``case`` whose ``reference`` is given: so many ``last_bits`` of the
    largest value, and a multiple of noise.

    All that an op leaves for one oracle has one scale: a sum of several gradients may cancel in
    one of them.
    """

    def __init__(self, case: Case, reference: Trace, last_bits: float = LAST_BITS) -> None:
        bit = last_bit(case)
        in_half = bit > torch.finfo(torch.float32).eps
        super().__init__(
            reference.values,
            lambda key: (key.op, key.oracle),
            last_bits * bit,
            OF_NOISE_IN_HALF if in_half else OF_NOISE,
        )

    def _share_of_largest(self, dtype: torch.dtype) -> float:
        """Of numbers that optimizers keep in float32 in a run in float64, their own last bits."""
        return max(self._of_largest, LAST_BITS * torch.finfo(dtype).eps)

    def excess(self, difference: Difference) -> tuple[bool, float, float]:
        """Return whether rounding explains the difference; its error and the bound."""
        if (both := difference.both) is None:
            return False, float("inf"), 0.0
        error, limit = difference.error, self.limit(difference.key, both[0].dtype)
        return error <= limit, error, limit

    def leaves(self, found: Iterable[Difference]) -> list[Difference]:
        """Return what rounding does not explain."""
        return [difference for difference in found if not self.excess(difference)[0]]
