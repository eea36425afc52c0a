"""The errors that ``fully_shard``'s documentation announces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fuzzshard.analysis.batches import told_rows
from fuzzshard.analysis.communication import fills_unused
from fuzzshard.analysis.dtypes import grad_dtype, policies
from fuzzshard.analysis.features import features
from fuzzshard.analysis.in_place import changed_outputs
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.analysis.tensor_parallel import passes_dtensors
from fuzzshard.case.case import Case
from fuzzshard.engines.fully_shard.lazy_roots import Flaw, flaw
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.engines.refusals import Due, Refusal
from fuzzshard.parts.engines import spec_of

TIES_ARE_REFUSED = (
    "FSDPState._validate_no_duplicate_params (torch/distributed/fsdp/_fully_shard/_fsdp_state.py)"
)


def _has_flaw(of: Flaw) -> Callable[[Case, str], Iterator[Due]]:
    def due(case: Case, engine: str) -> Iterator[Due]:
        found = flaw(case)
        if found is not None and found[0] is of:
            yield Due(found[1])

    return due


def _changes_views(case: Case, engine: str) -> Iterator[Due]:
    """Forwards with gradients that call a wrapped module whose output is changed in place."""
    changed = changed_outputs(case).intersection(
        path for group in case.wrap for path in group.modules
    )
    for at in follow(case):
        call = at.op.begins
        if call and call.grad and not changed.isdisjoint(at.calls_of(call.target)):
            yield Due(at.index, certain=False)  # an exception may come before


def _cuts_shards(case: Case, engine: str) -> Iterator[Due]:
    """Forwards and backwards, where a module cuts the dims of a DTensor otherwise; a Linear
    flattens all dims of its argument but the last one.
    """
    cuts = {"leaf:operator_reshape", "leaf:operator_flatten"} & features(case)
    in_parts = spec_of(engine).names_dims and case.spmd.inputs == "sharded"
    inside = any(plan.style == "dtensor" for plan in case.tensor_parallel)
    seq = case.inputs.seq
    uneven = any(size % (case.mesh.tensor or 1) for size in (*told_rows(case), seq))
    returned = inferred(case).output_values.values()
    deep = any(value.dims(seq) > 2 for values in returned for value in values)
    flattens = uneven and deep and passes_dtensors(case)
    if (cuts and (in_parts or inside)) or flattens:
        for index, op in enumerate(case.schedule):
            if op.begins or op.takes:
                yield Due(index, certain=False)


def _fills_with_any_dtype(case: Case, engine: str) -> Iterator[Due]:
    """Backwards that may reduce zeros for a parameter with gradients of any dtype."""
    owned = ((fqn, owner) for fqn, owner in inferred(case).owners.items() if owner is not None)
    lacks = any(
        grad_dtype(case, fqn, None) is None
        and fills_unused(case, owner)
        and not ((policy := policies(case)[owner]) and policy.reduce)
        for fqn, owner in owned
    )
    for index, op in enumerate(case.schedule if lacks else ()):
        if op.takes:
            yield Due(index, certain=False)


CUT_SHARDS = Refusal(
    "RuntimeError",
    "flatten unevenly sharded tensor|remove or reshape sharded dimension",
    _cuts_shards,
    "Cannot flatten unevenly sharded tensor: dimension [...] is not evenly divisible by mesh "
    "dimension [...]. Please redistribute the tensor before this operation.",
    "torch/distributed/tensor/_ops/_view_ops.py",
    doubt="along which dims a value is sharded there, DTensor's rules say",
)

_STATE = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "RuntimeError",
        "requires a single root module",
        _has_flaw(Flaw.LIST_GROUP_AS_ROOT),
        "Lazy initialization ... means that we can determine which state is the root, and we do "
        "so by the 1st state to run forward. ... requires a single root module",
        f"{_STATE}, _lazy_init",
    ),
    Refusal(
        "RuntimeError",
        "requires running forward through the root module first",
        _has_flaw(Flaw.ROOT_RUNS_LATER),
        "state has already been lazily initialized for ...: requires running forward through the "
        "root module first",
        f"{_STATE}, _lazy_init",
    ),
    Refusal(
        "ValueError",
        "is shared with a parameter already managed by another FSDP group",
        _has_flaw(Flaw.SHARED_ACROSS_GROUPS),
        "Parameter [...] is shared with a parameter already managed by another FSDP group. For "
        "shared/tied parameters, use fully_shard([module_a, module_b]) to place them in the same "
        "FSDP group.",
        TIES_ARE_REFUSED,
    ),
    Refusal(
        "ValueError",
        "Reducing unused parameters with grad_dtype=None requires an explicit",
        _fills_with_any_dtype,
        "Parameters requiring gradients with explicit grad_dtype=None require a non-None "
        "reduce_dtype so zero gradients have the same dtype on every rank; otherwise, backward "
        "raises an error.",
        "torch/distributed/fsdp/_fully_shard/_fully_shard.py, set_reduce_scatter_unused_params",
        doubt="a backward that does not reduce the group raises none, nor one of frozen "
        "parameters",
    ),
    Refusal(
        "UserWarning",
        "returned a view tensor. An in-place op on this view",
        _changes_views,
        "FSDP2-wrapped module [...] returned a view tensor. An in-place op on this view (e.g., "
        "`x += y`) will silently drop the pre-backward hook and skip the all-gather, which can "
        "cause backward to fail or produce wrong gradients.",
        f"{_STATE}, _register_pre_backward_hook: an error where an output is changed in place",
        doubt="whether an output is a view, only torch knows",
    ),
    CUT_SHARDS,
    NO_SAVED_STATE,
)
