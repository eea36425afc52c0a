"""Which mutants are worth a run: what strategies guarantee by construction, and mutation does not.

A case that validates may still be one that torch refuses under every engine, the reference
included, or one in which a difference means nothing. The strategies draw neither; here the same is
asked of a finished case.
"""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.flow import flow_of
from fuzzshard.case.graph import Block, walk
from fuzzshard.case.needs import unfit_for
from fuzzshard.case.paths import is_within_any
from fuzzshard.case.schedule_state import follow
from fuzzshard.parts.op import Switch

MAX_OPS = 72
MAX_LEAVES = 16
"""Mutants of mutants must not grow without end. Both are a few times what the strategies draw on
average.
"""


def fits(case: Case, world_size: int, *, cuda: bool) -> bool:
    """Whether a world of ``world_size`` ranks can run a valid case, and learns from it what it is
    about.
    """
    found = facts(case)
    return (
        case.mesh.size <= world_size
        and bool(found.parameters)
        and unfit_for(case, "cuda" if cuda else "cpu") is None
        and len(case.schedule) <= MAX_OPS
        and sum(not isinstance(m, Block) for _, m in walk(case.model)) <= MAX_LEAVES
        and _options_meet(case, found)
        and _trains(case, found)
    )


def _options_meet(case: Case, found: Facts) -> bool:
    """What :mod:`fuzzshard.strategies.swarm` says does not go together, and why."""
    ops = case.schedule
    if case.tensor_parallel and (
        case.init == "meta"
        or case.optimizer.does("may_step_lists")
        or any(leaf.is_dropout for leaf in found.leaves.values())
        or found.adds_in_place
        or any(group.does("names_size") for group in case.wrap)
    ):
        return False
    if case.mesh.tensor is None and case.tensor_parallel:
        return False
    if case.init == "meta" and case.ties:
        return False
    if any(op.casts_to for op in ops) and (case.dtypes or any(op.via for op in ops)):
        return False
    frozen = [freeze.target for freeze in case.freezes]
    toggled = [op.toggle for op in ops if op.toggle]
    if any(not is_within_any(d.target, frozen) for d in case.dtypes):
        return False
    if case.dtypes and any(toggle.value for toggle in toggled):
        return False
    return not (toggled and any(op.via == "dcp" for op in ops))


def _trains(case: Case, found: Facts) -> bool:
    """Whether every backward has something to differentiate, and parameters are not changed under
    a loss.

    autograd refuses a backward through parameters that a step has changed in place. A state is
    saved and loaded where no gradients wait to be synchronised.
    """
    flow = flow_of(case)
    off: set[Switch] = set()
    unsynced = backwards = 0
    saves = any(op.via for op in case.schedule)
    for at in follow(case):
        op = at.op
        if op.takes:
            backwards += 1
            unsynced = any(switch.flag == "requires_gradient_sync" for switch in off)
        if op.call and op.call.grad:
            flows = flow.outputs(op.call.target, frozenset(found.parameters) - at.frozen)
            if not any(flows[i] for i in op.call.outputs or range(len(flows))):
                return False
        if (op.updates or op.clips) and at.pending:
            return False
        if (op.updates or op.via or op.loads) and saves and unsynced:
            return False
        if op.switch:
            key = op.switch._replace(value=False)
            off = off - {key} if op.switch.value else off | {key}
    return backwards > 0
