"""Features of how checkpointing and wrapping meet in the backwards of a Case."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from fuzzshard.case.autograd import Node, Region, Tape, Value, reached
from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.groups import wrapped_modules
from fuzzshard.case.progress import Progress
from fuzzshard.case.schedule import Backward, Forward, SetMode
from fuzzshard.case.strides import multiplies_by_recomputed_strides


class _Unwatched:
    """No hooks: the graph that plain modules build."""

    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        return args

    def leave(self, path: str, results: list[Value], *, grad: bool) -> None:
        pass


def checkpoint_features(case: Case, found: Facts) -> Iterator[str]:
    """What is checkpointed, by what, and what is not recomputed as it was in wrapped modules."""
    for checkpoint in case.checkpoints:
        yield "checkpoint:module"
        yield f"checkpoint:{checkpoint.implementation}"
    wrapped = wrapped_modules(case)
    if case.checkpoints and any(_runs_in_vain(nodes, wrapped) for nodes in _backwards(case, found)):
        yield "checkpoint:unreached_unit"
    if multiplies_by_recomputed_strides(case, found):
        yield "checkpoint:strides_of_one"


def _backwards(case: Case, found: Facts) -> Iterator[list[Node]]:
    """The nodes that each backward runs, on the first rank."""
    tape, progress, training = Tape(case, found, _Unwatched()), Progress(case), True
    losses: dict[int, list[Node]] = {}
    for index, op in enumerate(case.schedule):
        match op:
            case SetMode():
                training = op.train
            case Forward():
                losses[index] = tape.loss(op, progress, training=training)
            case Backward():
                taken = [node for place, _, _ in progress.taken_by(op) for node in losses[place]]
                yield reached(taken)
            case _:
                pass
        progress.advance()


def _runs_in_vain(nodes: Iterable[Node], wrapped: Collection[str]) -> bool:
    """Whether a recomputation for ``nodes`` calls a wrapped module that none of them belongs to."""
    numbers = {node.number for node in nodes}
    regions = {id(region): region for node in nodes if node.saves for region in node.regions}
    return any(_is_unreached(region, wrapped, numbers) for region in regions.values())


def _is_unreached(region: Region, wrapped: Collection[str], numbers: Collection[int]) -> bool:
    begins: list[int] = []
    for path, is_begin, number in region.calls:
        if path not in wrapped:
            continue
        if is_begin:
            begins.append(number)
        elif not any(n in numbers for n in range(begins.pop(), number)):
            return True
    return False
