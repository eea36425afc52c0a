"""Features of how a Case is wrapped, frozen and parallelised."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fuzzshard.analysis.experts import beside_others
from fuzzshard.analysis.groups import holds_a_member
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.schedule_state import root_groups
from fuzzshard.analysis.tensor_parallel import tensor_dims
from fuzzshard.case.adapters import adapters
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.graph import Block, modules_below
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.engines import specs


def wrapping_features(case: Case, found: Inferred) -> Iterator[str]:
    """Yield the wrap plan."""
    wrapped = [m for group in case.wrap for m in group.modules]
    if len(case.wrap) > 1:
        yield "wrap:several_groups"
    if any(len(group.modules) > 1 for group in case.wrap):
        yield "wrap:list_group"
    if any(
        _leaves_root(case, group, root)
        for group, root in zip(case.wrap, root_groups(case), strict=True)
    ):
        yield "wrap:list_group_leaves_root"
    if any(holds_a_member(case, group) for group in case.wrap):
        yield "wrap:list_group_holds_member"
    if any(beside_others(case, group) for group in case.wrap):
        yield "wrap:experts_beside_others"
    if any(a and a != b and is_within(b, a) for a in wrapped for b in wrapped):
        yield "wrap:nested"
    if wrapped:
        yield "wrap:root" if "" in wrapped else "wrap:root_not_wrapped"
    if None in found.owners.values():
        yield "wrap:parameter_in_no_group"


def _leaves_root(case: Case, group: WrapGroup, root: int) -> bool:
    """Return whether ``group`` has modules outside of the group that becomes its FSDP root."""
    below = frozenset[str]().union(
        *(modules_below(case.model, m) for m in case.wrap[root].modules)
    )
    return not below.issuperset(group.modules)


def freezing_features(case: Case, found: Inferred) -> Iterator[str]:
    """Yield what is frozen, and when."""
    if case.freezes:
        yield "freeze:from_start"
    for freeze in case.freezes:
        yield "freeze:parameter" if freeze.target in found.parameters else "freeze:module"
        yield "freeze:after_wrap" if freeze.after_wrap else "freeze:before_wrap"
    kinds: dict[int, set[bool]] = {}
    for fqn, owner in found.owners.items():
        if owner is not None:
            frozen = any(is_within(fqn, freeze.target) for freeze in case.freezes)
            kinds.setdefault(owner, set()).add(frozen)
    if any(len(kind) == 2 for kind in kinds.values()):
        yield "freeze:mixed_group"
    targets = [freeze.target for freeze in case.freezes]
    for base, *others in adapters(case.model):
        if is_within_any(base, targets) and not any(is_within_any(p, targets) for p in others):
            yield "freeze:adapted"


def mesh_features(case: Case) -> Iterator[str]:
    """Yield sizes and axes of the mesh."""
    mesh = case.mesh
    yield f"mesh:{mesh.size}" if mesh.size <= 4 else "mesh:larger"
    if mesh.replicate is not None:
        yield "mesh:axis_of_one" if 1 in (mesh.shard, mesh.replicate) else "mesh:hsdp"
    if mesh.tensor is not None:
        yield "mesh:tensor"
        if mesh.replicate is not None:
            yield "mesh:hsdp_tensor"
    if mesh.pipeline is not None:
        yield "mesh:pipeline"
    if mesh.made != "plainly":
        yield f"mesh:{mesh.made}"


def group_features(case: Case) -> Iterator[str]:
    """Yield options of wrap groups."""
    for group in case.wrap:
        for option, value in group.told():
            yield from option.features(value)
    if len({group.precision for group in case.wrap}) > 1:
        yield "precision:mixed"
    if case.dtypes:
        yield "precision:parameter_dtype"


def engine_features(case: Case, found: Inferred) -> Iterator[str]:
    """Yield options of the engines that run; those that have the same ones each tell some."""
    for spec in specs(case.engines):
        yield from spec.features(case, found)


def tensor_parallel_features(case: Case, found: Inferred) -> Iterator[str]:
    """Yield styles and layouts of a tensor-parallel plan, and what it leaves some ranks."""
    for plan in case.tensor_parallel:
        yield f"tensor:{plan.style}"
        if "sequence" in (plan.input, plan.output):
            yield "tensor:sequence_layout"
        if not plan.local_output:
            yield "tensor:dtensor_output"
        if plan.dim is not None:
            yield "tensor:sharded_argument"
        if plan.style == "prepare":
            block = found.modules[plan.module]
            assert isinstance(block, Block)
            yield f"tensor:prepare_{block.passing}"
        if plan.result == "style":
            yield "tensor:prepare_result"
        if plan.result == "to_local":
            yield "tensor:local_result"
        if plan.grad_placements:
            yield "tensor:grad_placements"
        if plan.local_map:
            yield "tensor:local_map"
    if _leaves_ranks_empty(case, found):
        yield "tensor:empty_shard"


def _leaves_ranks_empty(case: Case, found: Inferred) -> bool:
    """Return whether ``torch.chunk`` leaves the last rank of the tensor-parallel axis nothing of a
    parameter.
    """
    dims = tensor_dims(case, found)
    ranks = case.mesh.tensor or 1
    sizes = [
        shape[dim] for fqn, shape in found.parameters.items() if (dim := dims.get(fqn)) is not None
    ]
    return any(math.ceil(size / ranks) * (ranks - 1) >= size for size in sizes)
