"""What DDP's documentation excludes, and the errors that it announces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from fuzzshard.case.arrivals import arrivals
from fuzzshard.case.case import Case
from fuzzshard.case.communication import some_fill_unused
from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule_state import follow
from fuzzshard.engines.ddp import options as ddp_options
from fuzzshard.engines.ddp.reducer import Complaint, complaint, reducer_options
from fuzzshard.engines.exclusion import RETYPED, Exclusion
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.engines.refusals import Due, Refusal
from fuzzshard.parts.ops.set_flag import SYNC_FLAGS

_CONSTRUCTION = (
    "distributed.py, class docstring: 'You should never try to change your model's parameters "
    "after wrapping up your model with DistributedDataParallel ... the constructor will register "
    "the additional gradient reduction functions on all the parameters of the model itself at the "
    "time of construction'"
)
_NO_SYNC = (
    "distributed.py, no_sync: 'gradients will be accumulated on module variables, which will "
    "later be synchronized in the first forward-backward pass exiting the context'"
)
_SYNC_POINTS = (
    "distributed.py, class docstring: 'Constructor, forward method, and differentiation of the "
    "output ... are distributed synchronization points'"
)

PRECISION = Exclusion(
    "the wrap groups have mixed precision or gather rounded parameters, which DDP does not know",
    "fuzzshard: MixedPrecisionPolicy and fsdp_pre_all_gather are fully_shard's",
)
DIVIDE_FACTOR = Exclusion(
    "a divide factor, which DDP has not",
    "distributed.py: DistributedDataParallel has no such method",
)
FILLED = Exclusion(
    "zeros for parameters without a gradient, which DDP leaves without",
    "distributed.py: set_reduce_scatter_unused_params is a method of FSDPModule alone",
)
ABORTED = Exclusion(
    "an iteration ends with an exception, after which DDP does not say how to go on",
    "distributed.py: reset_iter_state is a method of FSDPModule alone",
)
ASSIGNED = Exclusion(
    "load_state_dict(assign=True) replaces the parameters that DDP's constructor has hooked",
    _CONSTRUCTION,
)
CAST = Exclusion(
    "parameters are cast: DDP's buckets have the dtypes that they had at construction",
    _CONSTRUCTION,
)
ADDED = Exclusion("modules are added to the model after it was wrapped", _CONSTRUCTION)
AROUND_THE_WRAPPER = Exclusion("a forward does not go through the DDP wrapper", _SYNC_POINTS)
PARTIAL_FLAG = Exclusion("a flag for some modules only, which no_sync() cannot express", _NO_SYNC)
SWITCHED = Exclusion(
    "gradient sync is switched between a forward and its backward",
    "distributed.py, no_sync: 'The forward pass should be included inside the context manager, or "
    "else gradients will still be synchronized.'",
)
ONE_BY_ONE = Exclusion(
    "several forwards have their backward one by one",
    "reducer.cpp, checkAndRaiseMarkedTwiceError: 'Please make sure model parameters are not "
    "shared across multiple concurrent forward-backward passes.'",
)
UNSYNCED_STEP = Exclusion("a step on gradients that were not synchronised", _NO_SYNC)
UNFROZEN = Exclusion(
    "a parameter frozen at construction is unfrozen: DDP never synchronises it", _CONSTRUCTION
)
FROZEN_UNSYNCED = Exclusion(
    "a freeze while gradients wait for their synchronisation, of which DDP's hooks see no more",
    _CONSTRUCTION,
)
HOOKED_UNSYNCED = Exclusion(
    "a hook on what has accumulated, and a backward that does not synchronise",
    "_tensor.py, register_post_accumulate_grad_hook: 'The hook will be called after all gradients "
    "for a tensor have been accumulated', which DDP's are on each rank by then; engines that keep "
    "unsynchronised gradients elsewhere call it when they are reduced",
)
STEPPED = Exclusion(
    "a step within the backward, before DDP has averaged what it takes",
    "docs/source/notes/ddp.rst: 'When all buckets are ready, the Reducer will block waiting for "
    "all allreduce operations to finish. When this is done, averaged gradients are written to the "
    "param.grad field of all parameters.'",
)
RETAINED = Exclusion(
    "a second backward of a forward, of which DDP synchronises the first "
    "(https://github.com/pytorch/pytorch/issues/47260)",
    "reducer.cpp, autograd_hook: 'Ignore if we don't expect to be called. This may be the case if "
    "the user wants to accumulate gradients for number of iterations before reducing them.'; "
    "distributed.py, forward: prepare_for_backward expects one backward",
)
NOTHING_DIFFERENTIATED = Exclusion(
    "a step on gradients that were not synchronised: a backward had nothing to differentiate",
    _NO_SYNC,
)
MISSED_ROOT = Exclusion(
    "a backward misses an FSDP root, whose gradients it leaves unsynchronised",
    "fuzzshard: the reference synchronises what fully_shard's roots do, and DDP has no roots",
)


def not_applicable(case: Case, *, built_by_forward: bool = False) -> Exclusion | None:
    """Why DDP's documented contract does not cover a case, or None.

    ``built_by_forward``: construction is put off until the first forward. What runs under
    ``torch.no_grad()`` alone synchronises nothing, so it may go around the wrapper; so may
    backwards of forwards within ``no_sync()`` come one by one.
    """
    if has_precision(case):
        return PRECISION
    frozen = {
        fqn
        for fqn in facts(case).parameters
        if any(
            is_within(fqn, f.target) and (built_by_forward or not f.after_wrap)
            for f in case.freezes
        )
    }
    if (reason := ddp_options.not_covered(case, replicate=built_by_forward)) is not None:
        return reason
    built = not built_by_forward
    if case.added:
        return ADDED
    if any(op.factor is not None for op in case.schedule):
        return DIVIDE_FACTOR
    if some_fill_unused(case):
        return FILLED
    if any(op.aborts for op in case.schedule):
        return ABORTED
    if any(op.stepped for op in case.schedule):
        return STEPPED
    if any(op.retypes for op in case.schedule):
        return RETYPED
    unsynced, hooked, waiting = False, set[str](), frozenset[str]()
    retained: set[int] = set()
    for at in follow(case):
        op, call, switch, toggle = at.op, at.op.call, at.op.switch, at.op.toggle
        built = built or (call is not None and not call.target)
        if built_by_forward and op.rebuilds:
            built, frozen = False, set(at.frozen)
        if built and op.assign and at.saved == "state_dict":
            return ASSIGNED
        if built and op.casts_to:
            return CAST
        if call and call.target and call.grad:
            return AROUND_THE_WRAPPER
        if switch and switch.flag in SYNC_FLAGS and not switch.below.everything:
            return PARTIAL_FLAG
        if op.takes:
            if any(each.synced != at.synced for each in at.pending):
                return SWITCHED
            if len(at.pending) > 1 and op.takes != "all" and at.synced:
                return ONE_BY_ONE
            unsynced, left = not at.synced, hooked & waiting
            if (hooked and unsynced) or (left and left - arrivals(case)[at.index]):
                return HOOKED_UNSYNCED
            waiting = waiting | arrivals(case)[at.index] if unsynced else frozenset()
            places = {each.place for each in at.taken}
            if at.synced and not places.isdisjoint(retained):
                return RETAINED
            retained |= places if op.retains else set()
        if op.hooked is not None and op.hooked.accumulated:
            hooked.add(op.hooked.parameter)
        if unsynced and op.uses_gradients:
            return UNSYNCED_STEP
        if toggle:
            named = at.parameters_at(toggle.target)
            if built and toggle.value and not frozen.isdisjoint(named):
                return UNFROZEN
            if unsynced and not toggle.value:
                return FROZEN_UNSYNCED
            if not built:
                frozen = frozen - named if toggle.value else frozen | named
    return None


def misses_a_root(case: Case, unreduced: Collection[int]) -> bool:
    """Whether a synchronised backward leaves unreduced what an FSDP root has accumulated that it
    misses.

    DDP has no roots: the first synchronised backward ends what ``no_sync`` began. ``unreduced``
    are the backwards, by the index of their ops, after which the reference holds unreduced
    gradients.
    """
    return any(at.op.takes and at.index in unreduced and at.synced for at in follow(case))


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
