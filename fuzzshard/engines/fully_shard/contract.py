"""What ``fully_shard``'s documentation excludes, and the errors that it announces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fuzzshard.case.batches import only_some_ranks_have_rows
from fuzzshard.case.case import Case
from fuzzshard.case.communication import fills_unused
from fuzzshard.case.dtypes import grad_dtype, model_policy, policies, stored_dtype
from fuzzshard.case.facts import facts
from fuzzshard.case.in_place import changed_outputs
from fuzzshard.case.no_rows import has_other_graph_without_rows
from fuzzshard.case.schedule_state import follow
from fuzzshard.case.tensor_parallel import tensor_dims
from fuzzshard.contracts import (
    CHANGES_BETWEEN_FORWARD_AND_BACKWARD,
    REDUCTIONS_FOLLOW_GRAD_DTYPE,
)
from fuzzshard.engines.exclusion import (
    OTHER_GRAPH_ON_ONE_RANK,
    RETYPED,
    SWAPPED,
    Exclusion,
    swaps_settings,
)
from fuzzshard.engines.fully_shard import options
from fuzzshard.engines.fully_shard.lazy_roots import Flaw, flaw, sharing
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE, Lack, lacking
from fuzzshard.engines.refusals import Due, Refusal
from fuzzshard.parts.losses import LOSSES

TIES_ARE_REFUSED = (
    "FSDPState._validate_no_duplicate_params (torch/distributed/fsdp/_fully_shard/_fsdp_state.py)"
)

FSDP1_POLICY = Exclusion(
    "the mixed precision of the case is that of FSDP1",
    "fuzzshard: one policy for the whole model, and the reference follows one engine's",
)
VIEW_ON_ONE_RANK = Exclusion(
    "an output changed in place may be a view, and so refused, on the rank without rows alone",
    "_fsdp_state.py, _register_pre_backward_hook: 'An in-place op on this view ... will silently "
    "drop the pre-backward hook'; whether an output is a view, only torch knows, and the other "
    "ranks would wait",
)
MODIFIED_MEANWHILE = Exclusion(
    "parameters are modified between a forward and its backward",
    CHANGES_BETWEEN_FORWARD_AND_BACKWARD.source,
)
TIED_WITHOUT_A_ROOT = Exclusion(
    "two groups share a parameter, and no forward runs a root of both, which would be refused",
    TIES_ARE_REFUSED,
)
CAST_LATER = Exclusion(
    "parameters are cast after the first forward",
    "_fsdp_param_group.py, lazy_init: 'Initialize mixed precision attributes lazily in case the "
    "user changes the parameter dtypes after construction time but before forward'",
)

HOOKED = Exclusion(
    "a hook on the gradients that come to a sharded parameter: they come to the unsharded one",
    "_fully_shard.py, fully_shard: 'the unsharded parameters will be like the original parameters "
    "... After gradient computation, FSDP frees the unsharded parameters and reduce-scatters the "
    "unsharded gradients'",
)

TWICE = Exclusion(
    "a backward through a backward, of which fully_shard promises nothing",
    "https://github.com/pytorch/pytorch/issues/172543: the first backward frees parameters that "
    "the second one needs, and no documentation says what users have to do",
)


def not_applicable(case: Case) -> Exclusion | None:
    """Why ``fully_shard``'s documented contract does not cover a case, or None.

    In which releases parameters may be modified between a forward and its backward is in
    :mod:`fuzzshard.contracts`.
    """
    if model_policy(case) is not None:
        return FSDP1_POLICY
    if LOSSES[case.loss].differentiates_twice:
        return TWICE
    if any(op.retypes for op in case.schedule) and not REDUCTIONS_FOLLOW_GRAD_DTYPE.holds():
        return RETYPED
    if (name := options.lacking(case)) is not None:
        return Exclusion(
            f"this version of torch has no {name}",
            f"torch/distributed/fsdp/_fully_shard: there is no {name}",
        )
    wrapped = [path for group in case.wrap for path in group.modules]
    if not changed_outputs(case).isdisjoint(wrapped) and only_some_ranks_have_rows(case):
        return VIEW_ON_ONE_RANK
    if has_other_graph_without_rows(case, wrapped):
        return OTHER_GRAPH_ON_ONE_RANK
    if not CHANGES_BETWEEN_FORWARD_AND_BACKWARD.holds() and _modifies_awaited(case):
        return MODIFIED_MEANWHILE
    if _ties_without_a_root(case):
        return TIED_WITHOUT_A_ROOT
    owners = facts(case).owners
    planned = tensor_dims(case, facts(case))
    if swaps_settings(case, [f for f, owner in owners.items() if owner is None and f in planned]):
        return SWAPPED
    initialized = False
    for at in follow(case):
        op = at.op
        if op.hooked and not op.hooked.accumulated and owners[op.hooked.parameter] is not None:
            return HOOKED
        stored = {
            stored_dtype(case, fqn, at.cast) for fqn in facts(case).parameters if op.casts_to
        }
        if initialized and not stored <= {op.casts_to}:
            return CAST_LATER
        initialized = not op.rebuilds and (initialized or op.begins is not None or op.gathers)
    return None


def _ties_without_a_root(case: Case) -> bool:
    if all(len(groups) < 2 for groups in sharing(case)):
        return False
    found = flaw(case)
    return found is None or found[0] is not Flaw.SHARED_ACROSS_GROUPS


def _modifies_awaited(case: Case) -> bool:
    """Whether parameters change after a forward of which the backward comes later."""
    changed = -1
    for at in follow(case):
        if at.op.updates or at.op.loads or at.op.corrupts:
            changed = at.index
        if any(forward.place < changed for forward in at.taken):
            return True
    return False


def _has_flaw(of: Flaw) -> Callable[[Case, str], Iterator[Due]]:
    def due(case: Case, engine: str) -> Iterator[Due]:
        found = flaw(case)
        if found is not None and found[0] is of:
            yield Due(found[1])

    return due


def _shards_twice(case: Case, engine: str) -> Iterator[Due]:
    found = flaw(case)
    if found is not None and found[0] is Flaw.SHARDED_TWICE:
        yield Due(found[1], certain=False)


def _changes_views(case: Case, engine: str) -> Iterator[Due]:
    """Forwards with gradients that call a wrapped module whose output is changed in place."""
    changed = changed_outputs(case).intersection(
        path for group in case.wrap for path in group.modules
    )
    for at in follow(case):
        call = at.op.begins
        if call and call.grad and not changed.isdisjoint(at.calls_of(call.target)):
            yield Due(at.index, certain=False)  # an exception may come before


def _fills_with_any_dtype(case: Case, engine: str) -> Iterator[Due]:
    """Backwards that may reduce zeros for a parameter with gradients of any dtype."""
    owned = ((fqn, owner) for fqn, owner in facts(case).owners.items() if owner is not None)
    lacks = any(
        grad_dtype(case, fqn, None) is None
        and fills_unused(case, owner)
        and not ((policy := policies(case)[owner]) and policy.dtype_of("gradients"))
        for fqn, owner in owned
    )
    for index, op in enumerate(case.schedule if lacks else ()):
        if op.takes:
            yield Due(index, certain=False)


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
        "RuntimeError",
        "Cannot concatenate overlapping meshes",
        _shards_twice,
        "the same rule for a module that is registered in two groups: the second one meets a "
        "DTensor on its own mesh",
        "torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param",
        doubt="the second group has to leave out what is assigned to a group already "
        "(fully_shard, module)",
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
    Refusal(
        "RuntimeError",
        "_foreach_zero_.* got mixed torch.Tensor and DTensor",
        lacking(Lack.ONE_KIND_OF_GRADIENT),
        "with foreach the gradients of all parameters are zeroed in one call for each device and "
        "dtype; got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor "
        "before calling distributed operators",
        "torch/optim/optimizer.py, zero_grad; torch/distributed/tensor/_dispatch.py",
        doubt="gradients that a backward of another FSDP root reduces may come later",
    ),
    NO_SAVED_STATE,
)
