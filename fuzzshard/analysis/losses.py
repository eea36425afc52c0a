"""Which losses every backward of a schedule differentiates, known without running it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case


@dataclasses.dataclass(frozen=True)
class Losses:
    """``taken``: by backward, the forwards whose losses it adds up. ``skipped``: backwards with
    none. ``needed`` are the forwards whose loss some backward wants, ``parted`` those of which it
    wants the loss of some outputs.

    A loss that depends on nothing trainable takes no part in a backward.
    """

    taken: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    skipped: set[int] = dataclasses.field(default_factory=set)
    needed: set[int] = dataclasses.field(default_factory=set)
    parted: set[int] = dataclasses.field(default_factory=set)


@functools.lru_cache(maxsize=16)  # every engine trains the same schedule
def losses(case: Case, last: int, *, rank: int = 1) -> Losses:
    """For the ops up to ``last``, as ``rank`` runs them; every op runs on rank 1."""
    found = inferred(case)
    flow = flow_of(case)
    differentiable: dict[int, Sequence[bool]] = {}
    result = Losses()
    for at in itertools.islice(follow(case, rank), last + 1):
        if (call := at.op.call) is not None:
            trained = found.parameters.keys() - at.frozen
            differentiable[at.index] = flow.outputs(call.target, trained, at.paths)
        if not (takes := at.op.takes):
            continue
        taken = []
        for forward in at.taken:
            outputs = differentiable[forward.place]
            if any(outputs[i] for i in forward.call.used(len(outputs))):
                taken.append(forward.place)
        if not taken:
            result.skipped.add(at.index)
            continue
        result.taken[at.index] = taken
        (result.needed if takes.outputs is None else result.parted).update(taken)
    return result


def microbatches(case: Case, last: int) -> int:
    """How many microbatches of one kind the ops up to ``last`` are, after flags alone; 0 for
    anything else.

    They differ in their data only: the model has no state of its own that a forward changes.
    """
    ops = tuple(itertools.dropwhile(lambda op: op.switch, case.schedule[: last + 1]))
    calls, backwards = [op.call for op in ops[::2]], ops[1::2]
    kinds = {call and call.grad and call._replace(batch=0) for call in calls}
    paired = len(calls) == len(backwards) and all(
        op.takes and op.takes.outputs is None for op in backwards
    )
    if not paired or len(kinds) != 1 or not all(kinds):
        return 0
    changes = any(
        leaf.buffers == "statistics" or leaf.drops for leaf in inferred(case).leaves.values()
    )
    return 0 if changes or case.inputs.rank_batches else len(calls)
