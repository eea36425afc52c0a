"""Where gradients are averaged by hand, worked out from the schedule: the script states it, op by
op.

The rules are those of :mod:`fuzzshard.engines.sync`, which needs torch.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping

from fuzzshard.case.arrivals import arrivals
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.groups import roots_by_op
from fuzzshard.case.passed_roots import passed_roots
from fuzzshard.case.schedule_state import follow
from fuzzshard.reproducer.aim import Aim

Owner = int | None


@dataclasses.dataclass(frozen=True)
class SyncPlan:
    """``unsynced``: by backward, the parameters that it only accumulates. ``divisors``: by
    backward, what the gradients of parameters are divided by that is not the number of
    data-parallel ranks.

    ``roots``: by parameter, its FSDP root, where there are several: a backward ends the iteration
    of the roots that it passes, and of no others. ``through``: by backward, those of them that it
    brings no gradient. ``plain``: gradients may add up in ``.grad`` and be averaged there, because
    nothing reads them, or adds to them what is averaged already, in between; or because none is
    averaged by hand. ``clears``: the backward before which averages may be dropped, where only
    what comes after is looked at.
    """

    unsynced: Mapping[int, tuple[str, ...]]
    divisors: Mapping[int, Mapping[str, float]]
    names: tuple[str, ...]
    roots: Mapping[str, Owner]
    through: Mapping[int, frozenset[int]]
    plain: bool
    clears: int | None = None


def sync_plan(
    case: Case, aim: Aim, last: int, by_hand: Collection[Owner], taken: Mapping[int, list[int]]
) -> SyncPlan:
    """For ops up to ``last``; by backward, ``taken`` are its forwards.

    Where a comparison is tolerant, what is averaged already may be averaged again: it stays what
    it is but for rounding. What is compared with an unreduced gradient has nothing in it that is
    averaged.
    """
    owners = {name: owner for name, owner in facts(case).owners.items() if owner in by_hand}
    groups = roots_by_op(case)[last]
    roots = {name: None if owner is None else groups[owner] for name, owner in owners.items()}
    several = len(set(roots.values())) > 1
    unsynced: dict[int, tuple[str, ...]] = {}
    divisors: dict[int, dict[str, float]] = {}
    usual = case.mesh.data_size
    plain, averaged, local = True, False, False
    clears: int | None = None
    for at in itertools.islice(follow(case), last + 1):
        op, index = at.op, at.index
        if index in taken:
            names = tuple(name for name, owner in owners.items() if not at.flags.synced(owner))
            unsynced[index] = names
            factors = {
                n: f for n, owner in owners.items() if (f := at.flags.divisors[owner]) != usual
            }
            divisors |= {index: factors} if factors else {}
            everything, nothing = len(names) == len(owners), not names
            plain &= (aim.tolerant or not averaged) and (everything or nothing)
            plain &= not (names and (several or aim.has("reduced", index)))
            plain &= not factors or (not averaged and _is_one_factor(factors, owners))
            if nothing or (averaged and not local):
                clears = None if nothing else index
            averaged, local = averaged or nothing, bool(names)
        elif op.updates or op.clips:
            plain &= not local
        elif op.aborts:
            averaged = local = False
        elif op.zeroes_gradients:
            plain &= not local
            averaged &= bool(case.optimizer.left_out)
        elif op.replaces_parameters:
            plain = False  # parameters are others from here on
    plain |= not owners
    if not aim.has("waiting"):
        clears = None
    elif averaged and clears is None:
        plain = False
    if not several or not any(unsynced.values()):
        return SyncPlan(unsynced, divisors, tuple(owners), {}, {}, plain, clears)
    passed, arrived = passed_roots(case, 0), arrivals(case)
    through = {
        index: passed[index].difference(roots[n] for n in arrived[index] if n in roots)
        for index in taken
    }
    return SyncPlan(unsynced, divisors, tuple(owners), roots, through, plain, clears)


def _is_one_factor(factors: Mapping[str, float], names: Collection[str]) -> bool:
    """Whether all gradients are divided by the same."""
    return len(factors) == len(names) and len(set(factors.values())) == 1
