"""Mutations of the schedule: ops that go, come, move, run twice, and flags that are off for a
while.
"""

from __future__ import annotations

import functools
from random import Random
from typing import get_args

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import count_paths
from fuzzshard.mutate.edits import (
    cut_in,
    inserted,
    some_called,
    some_parameter,
    wrapped_modules,
)
from fuzzshard.parts.op import Below, Flag, Op, Switch, Toggle
from fuzzshard.parts.ops import OPS, setting, toggling


def drop_ops(rng: Random, case: Case, other: Case) -> Case | None:
    """Without a few ops in a row."""
    start, end = cut_in(len(case.schedule), rng)
    return replace(case, schedule=case.schedule[:start] + case.schedule[end:])


def move_ops(rng: Random, case: Case, other: Case) -> Case | None:
    """A few ops in a row, at another place."""
    start, end = cut_in(len(case.schedule), rng)
    rest = case.schedule[:start] + case.schedule[end:]
    return replace(
        case, schedule=inserted(rest, rng.randint(0, len(rest)), *case.schedule[start:end])
    )


def duplicate_ops(rng: Random, case: Case, other: Case) -> Case | None:
    """A few ops twice, or everything up to a step: another iteration."""
    steps = [i + 1 for i, op in enumerate(case.schedule) if op.updates or op.zeroes_gradients]
    if steps and rng.random() < 0.4:
        end = rng.choice(steps)
        return replace(case, schedule=case.schedule[:end] + case.schedule)
    start, end = cut_in(len(case.schedule), rng)
    return replace(case, schedule=inserted(case.schedule, end, *case.schedule[start:end]))


def add_ops(rng: Random, case: Case, other: Case) -> Case | None:
    """One thing more to do, at any place."""
    at = rng.randint(0, len(case.schedule))
    return replace(case, schedule=inserted(case.schedule, at, *_new_ops(rng, case)))


class Offered:
    """What ops that are added may name; all that are added at once name the same."""

    def __init__(self, rng: Random, case: Case) -> None:
        self.rng, self.case = rng, case
        wrapped = wrapped_modules(case)
        everything = rng.random() < 0.5 or not wrapped
        self.below = Below() if everything else Below(rng.choice(wrapped), recurse=False)
        self.paths = {
            p: count for p, count in count_paths(facts(case).modules).items() if count > 1
        }
        self.batch = rng.randint(0, 3)
        self.parameters = list(facts(case).parameters)
        self.some_called = functools.partial(some_called, rng, case)


def _new_ops(rng: Random, case: Case) -> tuple[Op, ...]:
    offered = Offered(rng, case)
    return rng.choice([ops for op in OPS for ops in op.additions(offered)])


def toggle(rng: Random, case: Case, other: Case) -> Case | None:
    """A toggle of ``requires_grad`` at another step; or one more, which is undone later half of
    the time.
    """
    at = [i for i, op in enumerate(case.schedule) if op.toggle]
    if at and rng.random() < 0.5:
        index = rng.choice(at)
        rest = case.schedule[:index] + case.schedule[index + 1 :]
        return replace(
            case, schedule=inserted(rest, rng.randint(0, len(rest)), case.schedule[index])
        )
    new = Toggle(some_parameter(rng, case), value=rng.random() < 0.5)
    undone = new._replace(value=not new.value)
    return replace(
        case, schedule=_for_a_while(rng, case.schedule, toggling(new), toggling(undone))
    )


def flag(rng: Random, case: Case, other: Case) -> Case | None:
    """A flag that is off for a part of the schedule, for all groups or for one."""
    wrapped = wrapped_modules(case)
    name: Flag = rng.choice(get_args(Flag))
    partial = bool(wrapped) and rng.random() < 0.4
    below = Below(
        rng.choice(wrapped) if partial else "", recurse=not partial or rng.random() < 0.3
    )
    off, on = (setting(Switch(name, value, below)) for value in (False, True))
    return replace(case, schedule=_for_a_while(rng, case.schedule, off, on, always=True))


def _for_a_while(
    rng: Random, schedule: tuple[Op, ...], begin: Op, end: Op, *, always: bool = False
) -> tuple[Op, ...]:
    """``begin`` at one place, and ``end`` at a later one (``always``, or half of the time)."""
    first, last = sorted(rng.randint(0, len(schedule)) for _ in range(2))
    if always or rng.random() < 0.5:
        schedule = inserted(schedule, last, end)
    return inserted(schedule, first, begin)
