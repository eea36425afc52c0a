"""The errors that DDP's documentation announces, and what it does not share with FSDP roots."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fuzzshard.analysis.arrivals import Replicated
from fuzzshard.analysis.autograd import AutogradGraph, reached
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import ScheduleState, follow
from fuzzshard.case.case import Case
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.engines.refusals import Due, Refusal
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.exclusion import Exclusion

MISSED_ROOT = Exclusion(
    "a backward misses an FSDP root, whose gradients it leaves unsynchronised",
    "fuzzshard: the reference synchronises what fully_shard's roots do, and DDP has no roots",
)


def missed_root(case: Case, unreduced: Collection[int]) -> Exclusion | None:
    """Return :data:`MISSED_ROOT` where a synchronised backward leaves unreduced what an FSDP root
    has accumulated that it misses.

    DDP has no roots: the first synchronised backward ends what ``no_sync`` began. ``unreduced``
    are the backwards, by the index of their ops, after which the reference holds unreduced
    gradients.
    """
    misses = any(at.op.takes and at.index in unreduced and at.synced for at in follow(case))
    return MISSED_ROOT if misses else None


def _seen_by(engine: str, case: Case) -> Replicated:
    return Replicated(case, by_replicate=not spec_of(engine).wrapper)


def _has_nothing_to_reduce(case: Case, engine: str) -> Iterator[Due]:
    """The constructor, or the forward in which ``replicate`` calls it."""
    seen, ops = _seen_by(engine, case), enumerate(case.schedule)
    roots = [index for index, op in ops if op.call and not op.call.target]
    if not seen.trained:
        yield from map(Due, roots if seen.by_replicate else [-1])


def _uses_what_the_last_forward_does_not(case: Case, engine: str) -> Iterator[Due]:
    """A forward marks what its outputs do not depend on ready with the first gradient that comes:
    then one of an earlier forward comes to it.
    """
    if case.ddp.find_unused_parameters and not case.ddp.static_graph:
        for at, of_each in _reducing_backwards(case, engine):
            if not frozenset().union(*of_each) <= of_each[-1]:
                yield Due(at.index)


def _reduces_nothing(case: Case, engine: str) -> Iterator[Due]:
    """With ``static_graph`` the first iteration is finalized in any case."""
    seen = _seen_by(engine, case)
    if case.ddp.manual_finalization and not seen.by_replicate:
        for at, of_each in _reducing_backwards(case, engine):
            if not any(of_each):
                yield Due(at.index, certain=not case.ddp.static_graph)


def _reducing_backwards(
    case: Case, engine: str
) -> Iterator[tuple[ScheduleState, list[frozenset[str]]]]:
    """Yield every backward that synchronises, with the parameters of the reducer that the outputs
    of each of its forwards depend on.
    """
    trained = _seen_by(engine, case).trained
    autograd = AutogradGraph(case, inferred(case))
    for at in follow(case):
        made = [filter(None, autograd.outputs[forward.place]) for forward in at.taken]
        if autograd.follow(at) and at.synced:
            nodes = map(reached, made)
            yield at, [trained & {f for n in each for f in n.parameters} for each in nodes]


_DDP = "torch/nn/parallel/distributed.py"
_REDUCER = "torch/csrc/distributed/c10d/reducer.cpp"

OF_REDUCER: tuple[Refusal, ...] = (
    Refusal(
        "RuntimeError",
        "is not needed when a module",
        _has_nothing_to_reduce,
        "DistributedDataParallel is not needed when a module doesn't have any parameter that "
        "requires a gradient.",
        f"{_DDP}, __init__",
    ),
    Refusal(
        "RuntimeError",
        "Expected to mark a variable ready only once",
        _uses_what_the_last_forward_does_not,
        "For unused parameters, DDP would not expect gradients from then. However, if an unused "
        "parameter becomes part of the autograd graph at a later point in time ..., the gradient "
        "will show up unexpectedly. ... Please make sure model parameters are not shared across "
        "multiple concurrent forward-backward passes.",
        f"{_REDUCER}, checkAndRaiseMarkedTwiceError",
    ),
    NO_SAVED_STATE,
)

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "RuntimeError",
        "no gradient reduction requires finalization",
        _reduces_nothing,
        "RuntimeError: ... if no gradient reduction requires finalization",
        f"{_DDP}, finalize_backward",
    ),
    *OF_REDUCER,
)
