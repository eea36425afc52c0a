"""Calls at moments at which few training loops make them, and at which nothing forbids them.

A moment is chosen first, so that the rare ones are drawn about as often as the others. Then either
something is called once more there, or, where the moment is a mode of the whole program, an op
that is there already comes to lie in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.case.case import Case
from fuzzshard.parts import ops
from fuzzshard.parts.moments import MOMENTS, Moment
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import EVERYDAY, OPS

if TYPE_CHECKING:
    from fuzzshard.strategies.schedules import Run

MODES: Mapping[Moment, tuple[Op, Op]] = {
    "in_evaluation": (ops.mode(train=False), ops.mode(train=True)),
    "under_no_grad": (ops.grads(enabled=False), ops.grads(enabled=True)),
}
"""What begins and ends the moments that are modes."""
_RARE: Mapping[Moment, int] = {"between_microbatches": 2, "after_load": 3}
"""The weights of moments that few cases have."""
_MOST = 4
"""The most calls of a case at moments of their own."""
_OF_FEW_CASES = 3
"""How much likelier an op is that few cases may have at all."""


def with_calls(run: Run, schedule: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return ``schedule`` with a few calls more, or with ops at other moments; it stays valid.

    Few calls make it invalid, so that the check, which costs most of it, comes once.
    """
    changes = [schedule]
    for _ in range(1 + run.tape.below(_MOST)):
        schedule = changes[-1]
        places = moments_of(replace(run.case, schedule=schedule))
        present = frozenset(MODES).union(*places)
        offered = [(moment, _RARE.get(moment, 1)) for moment in MOMENTS if moment in present]
        moment = run.tape.weighted(offered)
        mode = MODES.get(moment)
        changes.append(
            _surrounded(run, schedule, moment, mode)
            if mode and run.tape.chance(50)
            else _with_one(run, schedule, places, moment, mode or ())
        )
    made = (run.accepted(change) for change in changes[:0:-1])
    return next((schedule for schedule in made if schedule is not None), changes[0])


def _surrounded(
    run: Run, schedule: tuple[Op, ...], moment: Moment, mode: tuple[Op, Op]
) -> tuple[Op, ...]:
    """One of the ops in a mode; kinds of ops are equally likely."""
    kinds: dict[str, list[int]] = {}
    for index, op in enumerate(schedule):
        needs_gradients = moment == "under_no_grad" and op.begins and op.begins.grad
        if moment not in op.never and not needs_gradients and op.tag != mode[0].tag:
            kinds.setdefault(op.tag, []).append(index)
    if not kinds:
        return schedule
    index = run.tape.pick(kinds[run.tape.pick([*kinds])])
    begin, end = mode
    return (*schedule[:index], begin, schedule[index], end, *schedule[index + 1 :])


def _with_one(
    run: Run,
    schedule: tuple[Op, ...],
    places: Sequence[Set[Moment]],
    moment: Moment,
    mode: tuple[Op, ...],
) -> tuple[Op, ...]:
    """One thing more that is called at ``moment``, in its ``mode`` where it is one."""
    offered = [
        new
        for op in OPS
        if moment not in op.never and (new := op.draw_at(run, moment))
        for _ in range(1 if op in EVERYDAY else _OF_FEW_CASES)
    ]
    new = run.tape.pick(offered)
    fitting = [
        index
        for index, moments in enumerate(places)
        if (mode or moment in moments)
        and all(op.never.keys().isdisjoint({*moments, moment}) for op in new)
    ]
    if not fitting:
        return schedule
    index = run.tape.pick(fitting)
    return (*schedule[:index], *mode[:1], *new, *mode[1:], *schedule[index:])


def moments_of(case: Case) -> list[frozenset[Moment]]:
    """Return the moments before every op of a case, and after the last one."""
    at = ScheduleState(case)
    found = []
    for _ in case.schedule:
        found.append(at.moments)
        at.advance()
    return [*found, at.moments]
