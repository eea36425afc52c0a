"""Variants of a case that must train to the same values: the second run of a case with a relation.

The ops of a variant keep their places in the schedule: an op that is left out is replaced by one
that changes nothing, since dropout is seeded by an op's place.
"""

from __future__ import annotations

import itertools
from collections import Counter

from msgspec.structs import replace

from fuzzshard.case.case import Case, Mesh, WrapGroup
from fuzzshard.case.check_dtypes import called_dtypes
from fuzzshard.case.communication import some_fill_unused
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Block, Call, join, resolve
from fuzzshard.case.groups import calls_of, root_groups
from fuzzshard.case.schedule_state import follow
from fuzzshard.case.sync_flags import flags_set
from fuzzshard.case.validate import is_valid
from fuzzshard.parts import ops
from fuzzshard.parts.options.wrap_group import When


def variant(case: Case) -> Case | None:
    """``case`` with what its relation names changed; None where that would be another
    experiment.
    """
    changed: Case | None
    match case.relation:
        case None:
            return None
        case "reshard":
            changed = _resharded(case)
        case "prefetch":
            changed = _prefetched(case)
        case "checkpoint":
            changed = _without_checkpoints(case)
        case "delay":
            changed = replace(case, delays=())
        case "unshard":
            changed = _without_unshards(case)
        case "plan":
            changed = _root_only(case)
        case "mesh":
            changed = _with_replicas(case)
    if changed is None or changed == case or not is_valid(changed):
        return None
    return changed if _casts_alike(changed, case) else None


def _casts_alike(changed: Case, case: Case) -> bool:
    """Whether modules compute in the same dtypes: wrap groups cast where one group for all does
    not.
    """
    return called_dtypes(changed, facts(changed)) == called_dtypes(case, facts(case))


def _resharded(case: Case) -> Case:
    """Every group keeps its parameters after forward that would not, and the other way round."""
    roots = root_groups(case)
    wrap = []
    for index, group in enumerate(case.wrap):
        after = group.after_forward(case.mesh.shard)
        keeps = after.whole or (after.whole_as_root and roots[index] == index)
        wrap.append(group.resharding(after_forward=keeps))
    return replace(case, wrap=tuple(wrap))


def _prefetched(case: Case) -> Case | None:
    """Without prefetch lists; or with those that every group would have in the order of the
    forward.
    """
    without = tuple(group.prefetching({}) for group in case.wrap)
    if without != case.wrap:
        return replace(case, wrap=without)
    order = _call_order(case)
    if order is None:
        return None
    after = dict(itertools.pairwise(order))
    before = {second: first for first, second in after.items()}
    return replace(case, wrap=tuple(_with_prefetch(g, after, before) for g in case.wrap))


def _with_prefetch(group: WrapGroup, after: dict[str, str], before: dict[str, str]) -> WrapGroup:
    (module,) = group.modules
    near: dict[When, dict[str, str]] = {"forward": after, "backward": before}
    return group.prefetching({when: (n[module],) for when, n in near.items() if module in n})


def _call_order(case: Case) -> list[str] | None:
    """The wrapped modules below the root as a forward calls them; None where that is not one call
    each.

    What is gathered ahead and then not used would be used in a later forward, when it may be out
    of date.
    """
    wrapped = {m for g in case.wrap for m in g.modules if m}
    plain = all(len(g.modules) == 1 for g in case.wrap) and not case.checkpoints
    if not plain or any(
        op.path is not None or (op.call and op.call.target) for op in case.schedule
    ):
        return None
    order: list[str] = []
    _visit_calls(case, "", case.model, order)
    if any(count > 1 for module, count in Counter(order).items() if module in wrapped):
        return None
    called = [module for module in order if module in wrapped]
    return called if wrapped == set(called) and len(called) > 1 else None


def _visit_calls(case: Case, path: str, block: Block, order: list[str]) -> None:
    for node in block.nodes:
        if isinstance(node, Call) and (child := resolve(case.model, join(path, node.module))):
            order.append(child[0])
            if isinstance(child[1], Block):
                _visit_calls(case, *child, order)  # type: ignore[arg-type]


def _without_checkpoints(case: Case) -> Case | None:
    """Not where a batch norm would be counted once less."""
    recomputed = {p for c in case.checkpoints for p in calls_of(case, c.module)}
    return (
        None if recomputed.intersection(facts(case).batch_norms) else replace(case, checkpoints=())
    )


def _without_unshards(case: Case) -> Case | None:
    if some_fill_unused(case):
        return None  # a group that runs in no forward gets zeros once it is unsharded
    schedule = (ops.mode(train=at.training) if at.op.gathers else at.op for at in follow(case))
    return replace(case, schedule=tuple(schedule))


def _root_only(case: Case) -> Case | None:
    """One group in place of many that are alike; not where the schedule tells groups apart."""
    if not case.root_is_wrapped or len(case.wrap) == 1:
        return None
    kinds = {group.kind() for group in case.wrap}
    if some_fill_unused(case):
        return None  # another group is another set of parameters that have run
    if len(kinds) > 1 or any(op.below and not op.below.everything for op in case.schedule):
        return None
    root = next(g for g in case.wrap if "" in g.modules)
    return replace(case, wrap=(root.of(("",)),))


def _with_replicas(case: Case) -> Case | None:
    """The same ranks as an HSDP mesh of one replica; not where a flag concerns HSDP meshes
    only.
    """
    if case.mesh.replicate is not None or "requires_all_reduce" in flags_set(case):
        return None
    mesh: Mesh = replace(case.mesh, replicate=1)
    return replace(case, mesh=mesh)
