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
    """Which losses each backward differentiates; ops are told by their index in the schedule.

    ``taken`` are, by backward, the forwards whose losses it adds up; ``skipped`` the backwards
    that have none. ``needed`` are the forwards whose loss a backward takes, ``parted`` those of
    which it takes the loss of some outputs only.

    A loss that depends on nothing trainable takes no part in a backward.
    """

    taken: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    skipped: set[int] = dataclasses.field(default_factory=set)
    needed: set[int] = dataclasses.field(default_factory=set)
    parted: set[int] = dataclasses.field(default_factory=set)


@functools.lru_cache(maxsize=16)  # every engine trains the same schedule
def losses(case: Case, last: int, *, rank: int = 1) -> Losses:
    """Return those of the ops up to ``last``, as ``rank`` runs them; every op runs on rank 1."""
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
