"""A tape of bytes from which one dimension of a case is read, decision by decision.

Hypothesis draws the tapes of a case as one value, for three reasons. A byte costs 2 us where a
draw of its own costs 15 us. Bytes are uniform and independent of what modules are loaded, which
integers of Hypothesis are not. And where one strategy is drawn twice, four of five examples that
Hypothesis generates are mutations which copy one draw over another; here they were cases with
nothing in them.

Every dimension has its own tape, so shrinking the model leaves the schedule's decisions alone. A
zero byte is always the simplest decision, and so is everything past the end of the tape: options
are listed simplest first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Reads decisions off ``data``, one byte each."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def below(self, n: int) -> int:
        """An integer in ``range(n)``, nearly uniform for ``n`` up to 64."""
        return next(self._bytes, 0) * n >> 8

    def chance(self, percent: int) -> bool:
        """True with this probability; False is the simpler one."""
        return self.below(100) >= 100 - percent

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[tuple[T, int]]) -> T:
        """One of the options, as often as its weight says; the weights may sum to 256 at most."""
        at = self.below(sum(weight for _, weight in options))
        for option, weight in options:
            at -= weight
            if at < 0:
                return option
        raise AssertionError("unreachable: the weights cover the range")

    def some(self, options: Sequence[T], percent: int) -> list[T]:
        """Each option with this probability, in order."""
        return [option for option in options if self.chance(percent)]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """All options in some order; all zeros keep the order."""
        rest = list(options)
        return [rest.pop(self.below(len(rest))) for _ in options]

    def bits(self, n: int) -> int:
        """An integer below ``2**n``, every bit on with a probability of a half."""
        return sum(self.below(256) << at for at in range(0, n, 8)) & ((1 << n) - 1)


def cut(data: bytes, sizes: Sequence[int]) -> list[Tape]:
    """``data`` as consecutive tapes of these sizes."""
    ends = itertools.accumulate(sizes)
    return [Tape(data[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
