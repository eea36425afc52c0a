"""Predicates over Cases that stand in for bugs, and ``minimal``: what the reducer makes of
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.order import Size, size_order
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.paths import is_within
from fuzzshard.parts.ops import Backward, Forward, SetFlag, Step
from fuzzshard.shrink import ShrinkResult, shrink
from fuzzshard.strategies import draw_cases

Predicate = Callable[[Case], bool]


@functools.cache
def drawn_cases(seed: int = 0, count: int = 400) -> tuple[Case, ...]:
    """Random cases, the largest models first."""
    drawn = draw_cases(seed, count, world_size=4)
    return tuple(
        sorted(drawn, key=lambda c: len(inferred(c).modules) + len(c.schedule), reverse=True)
    )


def failing(predicate: Predicate) -> list[Case]:
    """The drawn cases for which the predicate holds, the largest first."""
    return [case for case in drawn_cases() if predicate(case)]


def minimal(predicate: Predicate, case: Case | None = None) -> ShrinkResult:
    """What the largest drawn case for which the predicate holds, or ``case``, shrinks to.

    One on several ranks by preference: shrinking adds none to a case on one.
    """
    found = [case] if case else failing(predicate)
    result = shrink(next((c for c in found if c.mesh.size > 1), found[0]), predicate)
    assert result.finished
    assert predicate(result.case)
    return result


def structure(case: Case) -> tuple[object, ...]:
    """The size of a case less what only breaks ties."""
    return tuple(size_order(case)[: Size._fields.index("kinds")])


def uneven_before_another(case: Case) -> bool:
    """A group manages an unevenly sharded parameter that is not its last one."""
    found = inferred(case)
    for index in range(len(case.wrap)):
        managed = [found.parameters[fqn] for fqn, owner in found.owners.items() if owner == index]
        if any(shape[0] % case.mesh.shard for shape in managed[:-1]):
            return True
    return False


def mixed_group(case: Case) -> bool:
    """A group manages frozen and trainable parameters."""
    found = inferred(case)
    frozen = {f for f in found.parameters if any(is_within(f, z.target) for z in case.freezes)}
    for index in range(len(case.wrap)):
        managed = {fqn for fqn, owner in found.owners.items() if owner == index}
        if managed & frozen and managed - frozen:
            return True
    return False


def unsynced_then_synced(case: Case) -> bool:
    """A backward without gradient synchronisation, then one with, and no step in between."""
    synced, unsynced_before = True, False
    for op in case.schedule:
        match op:
            case SetFlag(flag="requires_gradient_sync", target=""):
                synced = op.value
            case Step():
                unsynced_before = False
            case Backward():
                if synced and unsynced_before:
                    return True
                unsynced_before = not synced
    return False


def tied_in_list_group(case: Case) -> bool:
    """The two names of a parameter are within two modules of one group."""

    def member(group: WrapGroup, fqn: str) -> str | None:
        return next((m for m in group.modules if is_within(fqn, m)), None)

    ends = ((member(g, t.parameter), member(g, t.source)) for g in case.wrap for t in case.ties)
    return any(None not in pair and pair[0] != pair[1] for pair in ends)


def int_reshard_on_four(case: Case) -> bool:
    """``reshard_after_forward=2`` where the shard axis has four ranks."""
    return case.mesh.shard == 4 and any(g.reshard_after_forward in (2, 4) for g in case.wrap)


def two_forwards_of_checkpoint(case: Case) -> bool:
    """Two forwards before a backward, and a checkpoint on a wrapped module below another wrapped
    one.
    """
    wrapped = [m for group in case.wrap for m in group.modules]
    nested = {m for m in wrapped if any(is_within(m, w) and m != w for w in wrapped)}
    pending = 0
    for op in case.schedule:
        if isinstance(op, Forward):
            pending += op.grad
        elif isinstance(op, Backward):
            if pending > 1:
                return any(c.module in nested for c in case.checkpoints)
            pending -= 1
    return False


def several_groups(case: Case) -> bool:
    """Two wrap groups or more."""
    return len(case.wrap) > 1


def three_batches(case: Case) -> bool:
    """Three different input batches."""
    return len({op.batch for op in case.schedule if isinstance(op, Forward)}) > 2


def unused_module(case: Case) -> bool:
    """A module with parameters that no forward of the root calls."""
    found = inferred(case)
    return any(
        is_within(f, m) for m in set(found.modules) - found.called for f in found.parameters
    )
