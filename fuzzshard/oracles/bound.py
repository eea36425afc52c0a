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
from collections.abc import Iterable

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import last_bit
from fuzzshard.engines.rounding import largest
from fuzzshard.oracles.compare import Difference, largest_distance
from fuzzshard.training.trace import Key, Trace

OF_NOISE = 100.0
"""How many times as far an engine may be off as the reference moves when last bits change."""

OF_NOISE_IN_HALF = 4.0
"""The same where half precision computes: a hundred times its noise would be all digits it has."""

LAST_BITS = 16.0
"""How many last bits of the largest value an engine may be off where nothing moves."""


def half_of_the_digits(case: Case) -> float:
    """As many last bits as half of the digits are, for where nothing can be trained again."""
    return float(last_bit(case) ** -0.5)


class Bound:
    """What rounding explains of the differences from ``reference``, in a run of ``case``: so many
    ``last_bits`` of the largest value, and a multiple of how far last bits :meth:`move` values.

    All that an op leaves for one oracle has one scale: a sum of several gradients may cancel in
    one of them.
    """

    def __init__(self, case: Case, reference: Trace, last_bits: float = LAST_BITS) -> None:
        self.reference = reference
        self._last_bit = last_bit(case)
        self._last_bits = last_bits
        in_half = self._last_bit > torch.finfo(torch.float32).eps
        self._of_noise = OF_NOISE_IN_HALF if in_half else OF_NOISE
        self._noise: defaultdict[tuple[int, str], float] = defaultdict(float)

    def move(self, one: Trace, other: Trace) -> None:
        """Takes in how far two runs on numbers that differ in their last bits are apart."""
        for key, observation in one.tensors.items():
            there = other.tensors.get(key)
            a, b = observation.tensor, None if there is None else there.tensor
            if a is not None and b is not None and a.shape == b.shape:
                place = key.op, key.oracle
                self._noise[place] = max(self._noise[place], largest_distance(a, b))

    def excess(self, difference: Difference) -> tuple[bool, float, float]:
        """Whether rounding explains the difference; its error and the bound.

        Where no digits are left it may make infinities, too.
        """
        if (both := difference.both) is None:
            return False, float("inf"), 0.0
        error, limit = difference.error, self.limit(difference.key, both[0].dtype)
        lost = math.isinf(error) and not self.has_digits(difference.key)
        return error <= limit or lost, error, limit

    def leaves(self, found: Iterable[Difference]) -> list[Difference]:
        """What rounding does not explain."""
        return [difference for difference in found if not self.excess(difference)[0]]

    def limit(self, key: Key, dtype: torch.dtype) -> float:
        """The largest error that rounding explains; none in integers."""
        if not dtype.is_floating_point:
            return 0.0
        size = max(self._sizes[key.op, key.oracle], torch.finfo(dtype).tiny)
        noise = self._noise[key.op, key.oracle]
        return self._of_noise * noise + self._last_bits * self._last_bit * size

    def has_digits(self, key: Key) -> bool:
        """Whether the largest value that the op leaves there could be told from none."""
        return self._of_noise * self._noise[key.op, key.oracle] <= self._sizes[key.op, key.oracle]

    @functools.cached_property
    def _sizes(self) -> defaultdict[tuple[int, str], float]:
        """The largest element of each op and oracle."""
        sizes: defaultdict[tuple[int, str], float] = defaultdict(float)
        for key, observation in self.reference.tensors.items():
            if (tensor := observation.tensor) is not None:
                sizes[key.op, key.oracle] = max(sizes[key.op, key.oracle], largest(tensor))
        return sizes
