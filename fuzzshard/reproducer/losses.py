"""Which losses every backward of a schedule differentiates, known without running it."""

from __future__ import annotations

import dataclasses
import itertools

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.flow import Flow
from fuzzshard.case.schedule_state import follow


@dataclasses.dataclass(frozen=True)
class Losses:
    """``taken``: by backward, the forwards whose losses it adds up. ``skipped``: backwards with
    none.

    A loss that depends on nothing trainable takes no part in a backward.
    """

    taken: dict[int, list[int]]
    skipped: set[int]

    @property
    def needed(self) -> set[int]:
        """The forwards whose loss some backward wants."""
        return {index for indices in self.taken.values() for index in indices}


def losses(case: Case, last: int) -> Losses:
    """For the ops up to ``last``."""
    found = facts(case)
    flow = Flow(case.model, case.inputs, found, case.ties)
    differentiable: set[int] = set()
    result = Losses({}, set())
    for at in itertools.islice(follow(case, rank=1), last + 1):  # a rank that every op runs on
        if (call := at.op.call) is not None:
            outputs = flow.outputs(call.target, found.parameters.keys() - at.frozen, at.paths)
            differentiable |= (
                {at.index} if any(outputs[i] for i in call.used(len(outputs))) else set()
            )
        if at.op.takes:
            taken = [each.place for each in at.taken if each.place in differentiable]
            if taken:
                result.taken[at.index] = taken
            else:
                result.skipped.add(at.index)
    return result


def microbatches(case: Case, last: int) -> int:
    """How many microbatches of one kind the ops up to ``last`` are, after flags alone; 0 for
    anything else.

    They differ in their data only: the model has no state of its own that a forward changes.
    """
    ops = tuple(itertools.dropwhile(lambda op: op.switch, case.schedule[: last + 1]))
    calls, backwards = [op.call for op in ops[::2]], ops[1::2]
    kinds = {call and call.grad and call._replace(batch=0) for call in calls}
    paired = len(calls) == len(backwards) and all(op.takes for op in backwards)
    if not paired or len(kinds) != 1 or not all(kinds):
        return 0
    changes = any(leaf.is_batch_norm or leaf.is_dropout for leaf in facts(case).leaves.values())
    return 0 if changes or case.inputs.rank_batches else len(calls)
