"""Where decisions come from: a tape of bytes for campaigns, draws of Hypothesis for ``@given``.

Every strategy reads its decisions off a :class:`Tape`, one integer at a time, and 0 is always the
simplest: options are listed simplest first. So the two kinds of tape draw the same cases, about
equally often, and differ in what they are good at (note 0001):

- :class:`ByteTape` costs 2 us a decision. The stream of cases that a seed stands for is read off
  such tapes, and never shrinks: fuzzshard reduces the case itself.
- :class:`DrawnTape` costs 15 us a decision, which Hypothesis lowers and deletes by itself.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

T = TypeVar("T")
P = ParamSpec("P")


class Tape(abc.ABC):
    """Makes decisions."""

    @abc.abstractmethod
    def below(self, n: int) -> int:
        """Return an integer in ``range(n)``, nearly uniform for ``n`` up to 64."""

    def weighted(self, options: Sequence[tuple[T, int]]) -> T:
        """Return one of the options, as often as its weight says; weights sum to 256 at most."""
        at = self.below(sum(weight for _, weight in options))
        for option, weight in options:
            at -= weight
            if at < 0:
                return option
        raise AssertionError("unreachable: the weights cover the range")

    def chance(self, percent: int, *, simpler: bool = False) -> bool:
        """Return True with this probability; ``simpler`` says which answer is the simpler one."""
        return self.below(100) >= 100 - percent

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], percent: int) -> list[T]:
        """Return each option with this probability, in order."""
        return [option for option in options if self.chance(percent)]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """Return all options in some order; all zeros keep the order."""
        rest = list(options)
        return [rest.pop(self.below(len(rest))) for _ in options]

    def bits(self, n: int) -> int:
        """Return an integer below ``2**n``, every bit on with a probability of a half."""
        return sum(self.below(256) << at for at in range(0, n, 8)) & ((1 << n) - 1)

    def keeps(self) -> bool:
        """Return whether to do what was decided elsewhere: always, but for simpler cases."""
        return True

    def outline(
        self, make: Callable[Concatenate[Tape, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what ``make`` decides, of which nothing comes unless :meth:`keeps` says so."""
        return make(self, *args, **kwargs)

    def within(self, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``make`` returns, whose decisions belong together: they may go at once."""
        return make(*args, **kwargs)


class ByteTape(Tape):
    """Reads a byte for each decision; past the end of ``data`` all are zero."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def below(self, n: int) -> int:
        """Return an integer in ``range(n)``."""
        return next(self._bytes, 0) * n >> 8


def cut(data: bytes, sizes: Sequence[int]) -> list[Tape]:
    """Return ``data`` as consecutive tapes of these sizes."""
    ends = itertools.accumulate(sizes)
    return [ByteTape(data[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


class DrawnTape(Tape):
    """Draws a small integer of Hypothesis for each decision.

    What is in a case is decided where it is made, within a span of draws, so that Hypothesis
    deletes it with all that depends on it. What merely says which decisions come up at all (the
    swarm, the tasks of a model and their order) would be hundreds of draws with nothing to show
    for: two integers stand for it (:meth:`outline`), and a draw beside each use (:meth:`keeps`)
    leaves it out. Integers have no spans of their own, and spans no label in common: Hypothesis
    would copy one over another, which shifts all that follows.
    """

    def __init__(self, draw: DrawFn) -> None:
        self._draw = draw
        self._random = draw(st.randoms(use_true_random=False))
        self._spans = itertools.count()

    def below(self, n: int) -> int:
        """Return an integer in ``range(n)``."""
        return self._random.randrange(n) if n > 1 else 0

    def weighted(self, options: Sequence[tuple[T, int]]) -> T:
        """Return one of the options: the lowest integers stand for one each, to be found soon."""
        at = self.below(sum(weight for _, weight in options)) - len(options)
        if at < 0:
            return options[at][0]
        for option, weight in options:
            at -= weight - 1
            if at < 0:
                return option
        raise AssertionError("unreachable: the weights cover the range")

    def chance(self, percent: int, *, simpler: bool = False) -> bool:
        """Return True with this probability."""
        if percent in (0, 100):
            return percent == 100
        others = percent if not simpler else 100 - percent
        return self.weighted(((simpler, 100 - others), (not simpler, others)))

    def keeps(self) -> bool:
        """Return True in 98 of 100 draws, False for the simplest case."""
        return self.below(100) > 1

    def outline(
        self, make: Callable[Concatenate[Tape, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what ``make`` reads off the bytes of a drawn number; 0 stands for zeros."""
        number = 64 * self.below(64) + self.below(64)
        data = Random(number).randbytes(_OUTLINE) if number else b""
        return make(ByteTape(data), *args, **kwargs)

    def within(self, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``make`` returns, drawn as one span."""
        span = _span(next(self._spans))
        made: T = self._draw(span(self, make, args, kwargs))
        return made


_OUTLINE = 100
"""Bytes; few outlines take more than 80."""


@functools.cache
def _span(number: int) -> Callable[..., SearchStrategy[Any]]:
    """Return a composite with a label of its own."""

    def spanned(
        draw: DrawFn,
        tape: DrawnTape,
        make: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        label: int = number,
    ) -> Any:
        tape._draw = draw
        return make(*args, **kwargs)

    return st.composite(spanned)
