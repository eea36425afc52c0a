"""A tape of bytes from which one dimension of a case is read, decision by decision.

Hypothesis draws a tape as one value, which costs 2 us a byte where a draw of its own costs 15 us, and
its bytes are uniform, which small integers of Hypothesis are not. Every dimension has its own tape,
so shrinking the model leaves the schedule's decisions alone. A zero byte is always the simplest
decision, and so is everything past the end of the tape: options are listed simplest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

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


def tapes(size: int) -> st.SearchStrategy[Tape]:
    """Tapes of ``size`` decisions."""
    return st.binary(min_size=size, max_size=size).map(Tape)
