"""Which cases are not trained with experts that are sharded over an axis."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzshard.case.arrivals import arrivals
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.experts import of_experts, shares_evenly, weights
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Alias, walk
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule_state import follow
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.fully_shard import contract

_TITAN = "torchtitan/models/llama4/parallelize.py, apply_fsdp"
_DISPATCH = "torchtitan/distributed/expert_parallel.py, ExpertParallel"
_PARAM = "torch/distributed/fsdp/_fully_shard/_fsdp_param.py"
_UNTRIED = "fuzzshard: not tried"


def not_applicable(case: Case) -> Exclusion | None:
    """Return why nobody documents a case, or None; what ``fully_shard``'s documentation does not
    cover is not covered here either.
    """
    return contract.not_applicable(case) or next(_of_case(case), None)


def _of_case(case: Case) -> Iterator[Exclusion]:
    mixtures = facts(case).inner("experts")
    if not mixtures:
        yield Exclusion("there are no experts", _DISPATCH)
    if case.mesh.replicate is None:
        yield Exclusion(
            "a mesh without an axis that fully_shard may shard experts over, of one rank at least",
            f"{_TITAN}: experts get the mesh of the data-parallel ranks that have the same ones",
        )
    if not shares_evenly(case):
        yield Exclusion(
            f"{case.mesh.shard} ranks cannot have as many experts each",
            f"{_DISPATCH}, _token_dispatch: rows are counted for experts of equal numbers on "
            "every rank",
        )
    apart = {path for group in case.wrap if of_experts(case, group) for path in group.modules}
    if apart != mixtures.keys():
        yield Exclusion(
            "a mixture that is not in a group of its own",
            f"{_TITAN}: fully_shard(transformer_block.moe.experts, ...) before the block",
        )
    fqns = {*weights(case).values()}
    tied = any({tie.parameter, tie.source} & fqns for tie in case.ties)
    aliases = (module.target for _, module in walk(case.model) if isinstance(module, Alias))
    if tied or any(is_within(path, target) for target in aliases for path in mixtures):
        yield Exclusion("experts that are shared by several modules", f"{_UNTRIED}; {_TITAN}")
    if any(facts(case).owners[fqn] is None for fqn in fqns):
        yield Exclusion("experts that fully_shard is told to ignore", f"{_UNTRIED}; {_TITAN}")
    for group in case.wrap:
        if of_experts(case, group):
            yield from _of_group(case, group)
    if case.mesh.tensor or case.compile or case.init == "meta":
        yield Exclusion("tensor parallelism, compilation, or the meta device", _UNTRIED)
    if case.optimizer.does("steps_lists"):
        yield Exclusion(
            "a foreach optimizer would step parameters on several meshes together",
            "torch/distributed/tensor/_dispatch.py: all DTensors of an op lie on one mesh",
        )
    if _leaves_out_experts(case):
        yield Exclusion(
            "a backward that does not come to trained experts",
            "torch/distributed/_functional_collectives.py: the backward of all_to_all_single is a "
            "collective of all ranks, which gets zeros where no gradient comes",
        )
    if case.optimizer.does("scales"):
        yield Exclusion(
            "a GradScaler has gradients on several meshes",
            "torch/amp/grad_scaler.py, _unscale_grads_: one call for all gradients of a dtype",
        )
    if any(op.switch and op.switch.flag == "requires_all_reduce" for op in case.schedule):
        yield Exclusion(
            "a flag of meshes with two axes: that of experts has one",
            "_fully_shard.py, set_requires_all_reduce: 'This can be used to implement gradient "
            "accumulation with only reduce-scatter but not all-reduce for HSDP'",
        )


def _leaves_out_experts(case: Case) -> bool:
    """Whether some backward brings no gradient to experts that are trained then."""
    fqns = frozenset(weights(case).values())
    arrived = arrivals(case)
    return any(
        not fqns <= arrived[at.index] | at.frozen for at in follow(case) if at.index in arrived
    )


def _of_group(case: Case, group: WrapGroup) -> Iterator[Exclusion]:
    if group.does("names_size"):
        yield Exclusion(
            "experts that are resharded to a smaller mesh",
            f"{_PARAM}, to_sharded_post_forward: NotImplementedError for DTensor parameters",
        )
    own_group = any(each.does("own_group") for each in case.wrap)  # and those below it
    if own_group or group.does("gathers_several") or group.preparing("model", ["p"]):
        yield Exclusion(
            "experts with a process group or an all-gather of their own", f"{_UNTRIED}; {_TITAN}"
        )
    shapes = [facts(case).parameters[weights(case)[path]] for path in group.modules]
    dims = ((shape[dim], dim) for shape in shapes for dim in (group.dim_of(shape),))
    if any(dim and size % (case.mesh.replicate or 1) for size, dim in dims):
        yield Exclusion(
            "experts that the replicate axis does not divide along the dim of their shards",
            f"{_PARAM}: 'FSDP does not support uneven sharding on dim'",
        )
