"""Conditions that contracts of engines name and that are no features: too rare to be counted, or
only of interest to one engine. :class:`fuzzshard.parts.exclusion.Exclusion` says what each is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuzzshard.analysis.arrivals import Replicated, arrivals
from fuzzshard.analysis.attention import positions_divide
from fuzzshard.analysis.batches import rows_of_batch, used_batches
from fuzzshard.analysis.check_dtypes import casts_made
from fuzzshard.analysis.dtypes import model_policy
from fuzzshard.analysis.experts import has_experts, of_experts, shares_evenly, weights
from fuzzshard.analysis.inferred import inferred, updates_buffers
from fuzzshard.analysis.optimized import shares
from fuzzshard.analysis.optimizer_state import lacks_states
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.analysis.stages import (
    casts_between_stages,
    evaluations,
    num_stages,
    shared_by_stages,
    stages,
    stops_gradients,
)
from fuzzshard.analysis.units import parameter_units, splits_a_unit
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Alias, walk
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.engines import BY_GROUPS, REFERENCE
from fuzzshard.parts.op import Op, Switch, Taking
from fuzzshard.parts.ops import TakeStateDict, mode, setting, sharding


def misses_a_parameter(case: Case) -> bool:
    """Return whether a backward brings no gradient to a parameter that DDP is constructed with."""
    seen = Replicated(case, by_replicate=False)
    return any(some < seen.trained for some in seen.arrived)


def graph_changes(case: Case) -> bool:
    """Return whether not every backward is of as many forwards, through the same calls to the same
    parameters.
    """
    return not Replicated(case, by_replicate=False).graph_is_static


def cast_late(case: Case) -> bool:
    """Return whether parameters are cast to another dtype after lazy initialization.

    The first forward does that, and so do the ops that prepare one, as ``unshard()``.
    """
    return any(
        at.initialised
        and at.op.casts_to
        and (case.dtypes or at.op.casts_to != (at.cast or case.dtype))
        for at in follow(case)
    )


def shared_by_units(case: Case) -> bool:
    """Return whether a parameter is registered in several units of FSDP1."""
    return any(len(names) > 1 for names in parameter_units(case).values())


def splits_units(case: Case) -> bool:
    """Return whether some of the parameters of a unit, and not all, are frozen, unfrozen or hooked
    after wrapping, or are those that an optimizer gets.
    """
    targets = [freeze.target for freeze in case.freezes if freeze.after_wrap]
    targets += case.optimizer.exclude
    targets += (o.target for o in case.schedule if o.wants_sharded and o.ranks == "all")
    return any(splits_a_unit(case, target) for target in targets)


def experts_lie_otherwise(case: Case) -> bool:
    """Return whether experts do not lie as torchtitan has them: all in groups with the usual
    all-gather, as many on each rank, and divided by the replicate axis along the dim of their
    shards.
    """
    found, fqns = inferred(case), {*weights(case).values()}
    mixtures = found.inner("experts")
    groups = [group for group in case.wrap if of_experts(case, group)]
    aliases = (module.target for _, module in walk(case.model) if isinstance(module, Alias))
    shapes = (
        (group.dim_of(shape), shape)
        for group in groups
        for shape in (found.parameters[weights(case)[path]] for path in group.modules)
    )
    return (
        not shares_evenly(case)
        or any(g.preparing("model", ["p"]) for g in case.wrap if has_experts(case, g))
        or any({tie.parameter, tie.source} & fqns for tie in case.ties)
        or any(is_within(path, target) for target in aliases for path in mixtures)
        or any(found.owners[fqn] is None for fqn in fqns)
        or any(dim and shape[dim] % (case.mesh.replicate or 1) for dim, shape in shapes)
    )


def leaves_out_experts(case: Case) -> bool:
    """Return whether some backward brings no gradient to experts that are trained then."""
    fqns = frozenset(weights(case).values())
    arrived = arrivals(case)
    return any(
        not fqns <= arrived[at.index] | at.frozen for at in follow(case) if at.index in arrived
    )


def lack_positions(case: Case) -> bool:
    """Return whether ranks of the shard axis cannot have as many positions each, or in some batch
    none of them has rows.
    """
    ranks = case.mesh.shard
    batches = [rows_of_batch(case, batch) for batch in used_batches(case)]
    empty = any(not any(b[i : i + ranks]) for b in batches for i in range(0, len(b), ranks))
    return empty or not positions_divide(case)


def is_no_chain(case: Case) -> bool:
    """Return whether the model cannot be cut into stages that have their own modules, parameters,
    checkpoints and groups, and pass gradients on.
    """
    return not stages(case) or any(shared_by_stages(case)) or stops_gradients(case)


def runs_other_ops(case: Case) -> bool:
    """Return whether some op is no part of iterations that run all microbatches at once, and does
    not come between them either.
    """
    return not all(
        _is_of_training(at.op, within=bool(at.pending), waits=at.unsynced) for at in follow(case)
    )


_BETWEEN = (mode(train=True), mode(train=False))
"""What may come between iterations."""
_FINALIZING = [setting(Switch("requires_gradient_sync", value)) for value in (False, True)]


def _is_of_training(op: Op, *, within: bool, waits: bool) -> bool:
    """Return whether it is a forward of the root, the backward of all pending ones, or what a rank
    does with the gradients of its stages; or, unless ``within`` an iteration, with all that they
    have, unless it ``waits`` for their gradients.
    """
    if (call := op.begins) is not None:
        is_next = call.grad or not within
        return is_next and op.call == call and not call.target and call.outputs is None
    if op.takes:
        return op.takes == Taking()
    if op.uses_gradients:
        return True
    if op in _FINALIZING:
        return True
    is_whole = not waits and (op.lane == "state" or op == sharding())
    return not within and (is_whole or op in _BETWEEN)


def iterations_differ(case: Case) -> bool:
    """Return whether iterations are of different numbers of microbatches, of different sizes, or
    of fewer than a schedule needs; or gradients of several add up where each divides all of them.
    """
    zeroed, counts, run = True, set[int](), sum(map(len, evaluations(case).values()))
    for at in follow(case):
        if at.op.takes:
            if not zeroed and case.pipelining.scale_grads:
                return True
            counts.add(len(at.taken))
            run, zeroed = run + len(at.taken), zeroed and not at.synced
        zeroed |= at.op.zeroes is not None and not case.optimizer.left_out
    begun = [op.begins.batch for op in case.schedule if op.begins]
    shapes = {rows_of_batch(case, batch) for batch in begun}
    return (
        len(counts) != 1
        or run != len(begun)
        or len(shapes) > 1
        or any(0 in shape for shape in shapes)
        or (case.pipelining.fills_pipeline and max(counts) < num_stages(case))
    )


def lacks_saved_state(case: Case) -> bool:
    """Return whether a checkpoint may lack a parameter's state, under ``fully_shard`` or DDP."""
    within = REFERENCE if case.pipelining.replicates else BY_GROUPS
    return bool(lacks_states(case, within.name))


def lacks_optimizer(case: Case) -> bool:
    """Return whether some rank has no parameter that one of its optimizers gets."""
    names: list[list[str]] = [[] for _ in range(case.mesh.pipeline or 1)]
    for stage in stages(case):
        names[stage.rank] += inferred(stage.case).parameters
    left_out = case.optimizer.left_out
    held = ([n for n in of_rank if not is_within_any(n, left_out)] for of_rank in names)
    return not all(all(shares(case.optimizer, of_rank)) for of_rank in held)


def casts_otherwise(case: Case) -> bool:
    """Return whether mixed precision is not one policy of the whole model, for parameters and
    gradients both, that casts nothing but what the model gets.
    """
    found, policy = inferred(case), case.wrap[0].precision if case.wrap else None
    one = all(group.precision == policy and not group.rounding() for group in case.wrap)
    covers = case.root_is_wrapped and None not in found.owners.values()
    if policy is None or model_policy(case) is not None or not (one and covers):
        return True
    if not (policy.param and policy.reduce):
        return True
    return policy.keep is not None or any(
        any(call.outputs) or (path and any(call.inputs))
        for at in follow(case)
        if at.op.begins
        for path, calls in casts_made(
            case, found, at.op.begins.target, cast=at.cast, paths=at.paths
        ).items()
        for call in calls
    )


def recomputes_buffers(case: Case) -> bool:
    """Return whether a module that updates buffers is checkpointed."""
    return any(updates_buffers(case, checkpoint.module) for checkpoint in case.checkpoints)


def takes_shards(case: Case) -> bool:
    """Return whether a state is asked for by name whose tensors are not whole."""
    took = (op.options for op in case.schedule if isinstance(op, TakeStateDict))
    return any(options is not None and "full_state_dict" not in options for options in took)


CONDITIONS: Mapping[str, Callable[[Case], bool]] = {
    "misses_a_parameter": misses_a_parameter,
    "graph_changes": graph_changes,
    "cast_late": cast_late,
    "shared_by_units": shared_by_units,
    "splits_units": splits_units,
    "experts_lie_otherwise": experts_lie_otherwise,
    "leaves_out_experts": leaves_out_experts,
    "lack_positions": lack_positions,
    "is_no_chain": is_no_chain,
    "casts_between_stages": casts_between_stages,
    "runs_other_ops": runs_other_ops,
    "iterations_differ": iterations_differ,
    "lacks_saved_state": lacks_saved_state,
    "lacks_optimizer": lacks_optimizer,
    "casts_otherwise": casts_otherwise,
    "recomputes_buffers": recomputes_buffers,
    "takes_shards": takes_shards,
}
"""By the names that tables use."""
