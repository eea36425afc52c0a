"""Passes over what surrounds the model: engines, mesh, schedule, wrap plan."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.analysis.oddities import last_place, places, with_first_uses
from fuzzshard.analysis.order import mesh_rank
from fuzzshard.case.case import Case, Mesh
from fuzzshard.case.edit import split, with_item, without, without_op
from fuzzshard.case.paths import is_within
from fuzzshard.parts.options.wrap_group import mesh_size
from fuzzshard.shrink.passes import Edit, change_item, drop_item, lower, put


def engines(case: Case) -> Iterator[Edit]:
    """Keep one engine alone."""
    if len(case.engines) > 1:
        for engine in case.engines:
            yield put(engines=(engine,))


def meshes(case: Case) -> Iterator[Edit]:
    """Put simpler meshes of no more ranks than the case has: it was found on so many; and simpler
    ones of these ranks to go on on.
    """
    mesh = case.mesh
    offered = [replace(mesh, made="plainly")]
    offered += [Mesh(shard=n) for n in (1, 2, 3, 4, mesh.size) if n <= mesh.size]
    for axis in ("replicate", "tensor", "pipeline"):
        if getattr(mesh, axis) is not None:
            offered += [
                replace(mesh, **{axis: size})
                for size in (None, 1, 2)
                if size != getattr(mesh, axis)
            ]
    offered += [replace(mesh, shard=n) for n in (1, 2) if n < mesh.shard]
    offered = [m for m in offered if m.size <= mesh.size]
    if mesh.replicate is not None:
        axes = [(r, s) for r in (1, 2, mesh.replicate) for s in (1, 2, mesh.shard)]
        offered += [
            Mesh(replicate=r, shard=s) for r, s in axes if r <= mesh.replicate and s <= mesh.shard
        ]
    for simpler in sorted(dict.fromkeys(offered), key=mesh_rank):
        if simpler != mesh:
            yield put(mesh=simpler)
    for index, op in enumerate(case.schedule):
        for shape in mesh.shapes if op.rebuilds else ():
            if shape != op.rebuilds:
                yield change_item("schedule", index, mesh=shape)


def prefixes(case: Case) -> Iterator[Edit]:
    """Keep the first ops of the schedule: what comes after the failing op never matters."""
    for length in lower(len(case.schedule), 2):
        expect = tuple(e for e in case.expect if e.op < length)
        yield put(schedule=case.schedule[:length], expect=expect)


def ops(case: Case) -> Iterator[Edit]:
    """Leave out one op; a flag that is set goes with the op that restores it."""
    for index in range(len(case.schedule)):
        yield _drop_op(index)


def lone_ops(case: Case) -> Iterator[Edit]:
    """Leave out one flag, although it is restored later."""
    for index, op in enumerate(case.schedule):
        if op.restored_by:
            yield functools.partial(without_op, index=index)


def _drop_op(index: int) -> Edit:
    def edit(case: Case) -> Case:
        op, case = case.schedule[index], without_op(case, index)
        if restoring := op.restored_by:
            later = [i for i in range(index, len(case.schedule)) if case.schedule[i] == restoring]
            case = without_op(case, later[0]) if later else case
        return case

    return edit


def extras(case: Case) -> Iterator[Edit]:
    """Leave out one checkpoint, freeze, tie, or other item of a plan."""
    for field in (
        "checkpoints",
        "freezes",
        "ties",
        "dtypes",
        "tensor_parallel",
        "ignored",
        "delays",
        "expect",
    ):
        for index in range(len(getattr(case, field))):
            yield drop_item(field, index)


def groups(case: Case) -> Iterator[Edit]:
    """Leave out one wrap group."""
    for index in range(len(case.wrap)):
        yield drop_item("wrap", index)


def group_members(case: Case) -> Iterator[Edit]:
    """Leave out one module of a list group."""
    for group in case.wrap:
        if len(group.modules) > 1:
            for path in group.modules:
                yield _drop_member(path)


def _drop_member(path: str) -> Edit:
    def edit(case: Case) -> Case:
        groups = (replace(g, modules=tuple(m for m in g.modules if m != path)) for g in case.wrap)
        return replace(case, wrap=tuple(groups))

    return edit


def merge_groups(case: Case) -> Iterator[Edit]:
    """Make one list group of two groups."""
    for second in range(1, len(case.wrap)):
        for first in range(second):
            group = case.wrap[first]
            merged = replace(group, modules=group.modules + case.wrap[second].modules)
            yield put(wrap=with_item(without(case.wrap, second), first, merged))


def raise_targets(case: Case) -> Iterator[Edit]:
    """Let a reference name the parent of the module or parameter that it names now."""
    for index, group in enumerate(case.wrap):
        for member, path in enumerate(group.modules):
            if path:
                modules = with_item(group.modules, member, split(path)[0])
                yield change_item("wrap", index, modules=modules)
    for index, freeze in enumerate(case.freezes):
        if freeze.target:
            yield change_item("freezes", index, target=split(freeze.target)[0])
    for index, checkpoint in enumerate(case.checkpoints):
        if checkpoint.module:
            yield change_item("checkpoints", index, module=split(checkpoint.module)[0])
    for index, op in enumerate(case.schedule):
        if op.target:
            yield change_item("schedule", index, target=split(op.target)[0])


def raise_groups(case: Case) -> Iterator[Edit]:
    """Put the root, or the parent of a member, in place of a group; applied after the groups below
    it.
    """
    for index, group in enumerate(case.wrap):
        others = without(case.wrap, index)
        for path in dict.fromkeys(("", *(split(m)[0] for m in group.modules))):
            below = [
                i
                for i, other in enumerate(others)
                if any(is_within(m, path) for m in other.modules)
            ]
            at = max(below, default=index - 1) + 1
            yield put(wrap=(*others[:at], replace(group, modules=(path,)), *others[at:]))


def delay_forwards(case: Case) -> Iterator[Edit]:
    """Move a forward behind a backward that does not need it, which then is of all pending
    losses.
    """
    ops = case.schedule
    for j, backward in enumerate(ops):
        if backward.takes and backward.takes.which != "all":
            of_all = type(backward)()
            for i, op in enumerate(ops[:j]):
                if op.call:
                    yield put(schedule=(*ops[:i], *ops[i + 1 : j], of_all, op, *ops[j + 1 :]))


def op_order(case: Case) -> Iterator[Edit]:
    """Exchange two neighbouring ops."""
    ops = case.schedule
    for i in range(len(ops) - 1):
        yield put(schedule=(*ops[:i], ops[i + 1], ops[i], *ops[i + 2 :]))


def numbers(case: Case) -> Iterator[Edit]:
    """Number input batches in order of first use, the plan in registration order, a seed of
    0.
    """
    renumbered = with_first_uses(case)
    yield put(schedule=renumbered.schedule, inputs=renumbered.inputs)
    yield _sort_groups
    yield _sort_members
    yield put(seed=0)
    for index, group in enumerate(case.wrap):
        size = mesh_size(group.reshard_after_forward)
        if size is not None and size > 1:
            yield change_item("wrap", index, reshard_after_forward=size // 2)


def _sort_members(case: Case) -> Case:
    place = places(case)
    groups = (
        replace(g, modules=tuple(sorted(g.modules, key=lambda m: place[m]))) for g in case.wrap
    )
    return replace(case, wrap=tuple(groups))


def _sort_groups(case: Case) -> Case:
    place = places(case)
    return replace(case, wrap=tuple(sorted(case.wrap, key=lambda group: last_place(group, place))))
