"""Which cases are not trained with SimpleFSDP; torchtitan documents it by its source."""

from __future__ import annotations

from fuzzshard.case.batches import only_some_ranks_have_rows
from fuzzshard.case.case import Case
from fuzzshard.case.check_dtypes import casts_made
from fuzzshard.case.communication import some_fill_unused
from fuzzshard.case.dtypes import (
    grad_dtypes_set,
    has_precision,
    held_dtype,
    model_policy,
    stored_dtype,
)
from fuzzshard.case.facts import facts
from fuzzshard.case.no_rows import has_other_graph_without_rows
from fuzzshard.case.schedule_state import follow
from fuzzshard.engines.exclusion import (
    OTHER_GRAPH_ON_ONE_RANK,
    SWAPPED,
    Exclusion,
    swaps_settings,
)
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.parts.ops.set_flag import SYNC_FLAGS

_TITAN = "torchtitan/experiments/simple_fsdp/simple_fsdp.py"

PRECISION = Exclusion(
    "mixed precision that is not one policy of the whole model, of parameters and of gradients",
    f"{_TITAN}, MixedPrecisionPolicy: param_dtype and reduce_dtype, of the whole model",
)
CASTS = Exclusion(
    "mixed precision that casts what modules within the model get or return",
    f"{_TITAN}, replicate_compute: parameters are cast, and the user casts what the model gets",
)
TENSOR_PARALLEL = Exclusion(
    "parameters that are tensor parallel already",
    f"fuzzshard: not tried; {_TITAN}, _distribute_dtensor: 'experimental enhancements to "
    "distribute a DTensor'",
)
LISTED = Exclusion(
    "a module that reads its parameters from a list of its own, and not as attributes",
    f"{_TITAN}, _register_parametrization: attributes of the module's class compute the whole "
    "from module._parameters; torch/nn/modules/rnn.py, forward reads self._flat_weights",
)
UNSYNCED = Exclusion(
    "a backward that does not synchronise gradients",
    f"{_TITAN}, replicate_compute: every backward reduces, in the gradient of redistribute()",
)
DIVIDED = Exclusion(
    "a divide factor, which only groups of fully_shard are told",
    f"{_TITAN}, replicate_compute: gradients are Partial over the mesh, to be averaged",
)
FILLED = Exclusion(
    "zeros for parameters without a gradient, which autograd leaves without",
    "torch/distributed/fsdp/_fully_shard/_fully_shard.py: set_reduce_scatter_unused_params is a "
    "method of FSDPModule alone",
)
PROMOTED = Exclusion(
    "gradients of any dtype that groups of fully_shard reduce together with wider ones",
    "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, MixedPrecisionPolicy: 'Gradients with "
    "different dtypes in one communication group are reduced in their promoted dtype'",
)

REFUSALS = (NO_SAVED_STATE,)


def not_applicable(case: Case) -> Exclusion | None:
    """Return why a case is not run, or None.

    After an exception nothing is left of an iteration but gradients, which the user zeroes.
    """
    if has_precision(case) and (reason := _of_precision(case)) is not None:
        return reason
    if case.tensor_parallel:
        return TENSOR_PARALLEL
    if any(leaf.lists_parameters for leaf in facts(case).leaves.values()):
        return LISTED
    if any(
        op.switch and op.switch.flag in SYNC_FLAGS and not op.switch.value for op in case.schedule
    ):
        return UNSYNCED
    if any(op.factor is not None for op in case.schedule):
        return DIVIDED
    if some_fill_unused(case):
        return FILLED
    if _promotes_gradients(case):
        return PROMOTED
    if swaps_settings(case, facts(case).parameters):
        return SWAPPED
    if has_other_graph_without_rows(case, ()) or _stops_elsewhere(case):
        return OTHER_GRAPH_ON_ONE_RANK
    return None


def _of_precision(case: Case) -> Exclusion | None:
    """Why the policies of the groups are none that SimpleFSDP has, or None."""
    found, policy = facts(case), case.wrap[0].policy if case.wrap else None
    one = all(group.policy == policy and not group.rounding() for group in case.wrap)
    covers = case.root_is_wrapped and None not in found.owners.values()
    if policy is None or model_policy(case) is not None or not (one and covers):
        return PRECISION
    named = policy.dtype_of("parameters") and policy.dtype_of("gradients")
    if not named or policy.does("keeps_vectors"):
        return PRECISION
    for at in follow(case):
        if at.op.begins:
            target = at.op.begins.target
            made = casts_made(case, found, target, cast=at.cast, paths=at.paths)
            inputs = (any(c.inputs) for path, calls in made.items() if path for c in calls)
            outputs = (any(c.outputs) for calls in made.values() for c in calls)
            if any(inputs) or any(outputs):
                return CASTS
    return None


def _promotes_gradients(case: Case) -> bool:
    """Whether a group decides in which dtype gradients come to a parameter that takes any."""
    found = facts(case)
    return any(
        dtype is None and held_dtype(case, found, fqn, None) != stored_dtype(case, fqn, None)
        for fqn, dtype in grad_dtypes_set(case).items()
    )


def _stops_elsewhere(case: Case) -> bool:
    """Whether a checkpoint may gather other parameters again on the rank without rows: it stops
    at the last tensor that a backward needs (``set_checkpoint_early_stop``), a mask for instance.
    """
    drops = any(leaf.drops for leaf in facts(case).leaves.values())
    return drops and bool(case.checkpoints) and only_some_ranks_have_rows(case)
