"""The errors that DDP's documentation announces, and what it does not share with FSDP roots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case
from fuzzshard.engines.ddp.reducer import Complaint, complaint, reducer_options
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.engines.refusals import Due, Refusal
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


def _complains(of: Complaint) -> Callable[[Case, str], Iterator[Due]]:
    def due(case: Case, engine: str) -> Iterator[Due]:
        found = complaint(case, reducer_options(case, engine))
        if found is not None and found[0] is of:
            yield Due(found[1])

    return due


_DDP = "torch/nn/parallel/distributed.py"
_REDUCER = "torch/csrc/distributed/c10d/reducer.cpp"

OF_REDUCER: tuple[Refusal, ...] = (
    Refusal(
        "RuntimeError",
        "is not needed when a module",
        _complains(Complaint.NOTHING_TO_REDUCE),
        "DistributedDataParallel is not needed when a module doesn't have any parameter that "
        "requires a gradient.",
        f"{_DDP}, __init__",
    ),
    Refusal(
        "RuntimeError",
        "Expected to mark a variable ready only once",
        _complains(Complaint.READY_TWICE),
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
        _complains(Complaint.NOTHING_TO_FINALIZE),
        "RuntimeError: ... if no gradient reduction requires finalization",
        f"{_DDP}, finalize_backward",
    ),
    *OF_REDUCER,
)
