"""Which losses every backward of a schedule differentiates, known without running it."""

from __future__ import annotations

import dataclasses
import itertools

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.flow import Flow
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule import Backward, Forward, SetFlag, SetPath, SetRequiresGrad


@dataclasses.dataclass(frozen=True)
class Losses:
    """``taken``: by backward, the forwards whose losses it adds up. ``skipped``: backwards with none.

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
    frozen = {fqn for f in case.freezes for fqn in found.parameters if is_within(fqn, f.target)}
    trainable = set(found.parameters) - frozen
    paths: dict[str, int] = {}
    pending: list[tuple[int, bool]] = []
    result = Losses({}, set())
    for index, op in enumerate(case.schedule[: last + 1]):
        match op:
            case Forward(grad=True):
                outputs = flow.outputs(op.target, trainable, paths)
                used = range(len(outputs)) if op.outputs is None else op.outputs
                pending.append((index, any(outputs[i] for i in used)))
            case SetRequiresGrad():
                names = {fqn for fqn in found.parameters if is_within(fqn, op.target)}
                trainable = trainable | names if op.value else trainable - names
            case SetPath():
                paths[op.target] = op.path
            case Backward(which=which):
                cut = {"all": slice(None), "oldest": slice(0, 1), "newest": slice(-1, None)}[which]
                taken = [i for i, differentiable in pending[cut] if differentiable]
                del pending[cut]
                if taken:
                    result.taken[index] = taken
                else:
                    result.skipped.add(index)
            case _:
                pass
    return result


def microbatches(case: Case, last: int) -> int:
    """How many microbatches of one kind the ops up to ``last`` are, after flags alone; 0 for anything else.

    They differ in their data only: the model has no state of its own that a forward changes.
    """
    ops = tuple(itertools.dropwhile(lambda op: isinstance(op, SetFlag), case.schedule[: last + 1]))
    forwards, backwards = ops[::2], ops[1::2]
    kinds = {replace(op, batch=0) for op in forwards if isinstance(op, Forward) and op.grad}
    paired = len(forwards) == len(backwards) and all(isinstance(op, Backward) for op in backwards)
    if not paired or len(kinds) != 1 or not all(isinstance(op, Forward) and op.grad for op in forwards):
        return 0
    changes = any(leaf.is_batch_norm or leaf.is_dropout for leaf in facts(case).leaves.values())
    return 0 if changes or case.inputs.rank_batches else len(forwards)
