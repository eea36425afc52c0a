"""What a mutation is: an edit of a case at random, with another case at hand to take something
from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts

T = TypeVar("T")

Mutation = Callable[[Random, Case, Case], Case | None]
"""``mutation(rng, case, other)``: the changed case, or None where there is nothing to change.

The result may have dangling references, and need not be valid: it is repaired, and checked.
"""


def wrapped_modules(case: Case) -> list[str]:
    """Every module of the wrap plan."""
    return [module for group in case.wrap for module in group.modules]


def some_parameter(rng: Random, case: Case) -> str:
    """A parameter, or as often a module that has some."""
    fqns = list(facts(case).parameters)
    fqn = rng.choice(fqns)
    if rng.random() < 0.5:
        return fqn
    return rng.choice([fqn[:end] for end in range(len(fqn)) if fqn[end] == "."] or [fqn])


def some_called(rng: Random, case: Case) -> str:
    """A module below the root that a forward of the root calls, by preference a wrapped one; or
    the root.
    """
    called = [path for path in facts(case).called if path]
    wrapped = sorted(set(called) & set(wrapped_modules(case)))
    among = wrapped if wrapped and rng.random() < 0.6 else sorted(called)
    return rng.choice(among) if among else ""


def cut_in(length: int, rng: Random) -> tuple[int, int]:
    """The two ends of a slice of one to six items, mostly short."""
    start = rng.randrange(length)
    return start, min(length, start + min(rng.randint(1, 6), rng.randint(1, 6)))


def inserted(items: Sequence[T], at: int, *new: T) -> tuple[T, ...]:
    """``items`` with ``new`` before the one at ``at``."""
    return (*items[:at], *new, *items[at:])
