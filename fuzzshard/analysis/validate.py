"""Which Cases are experiments: everything a rank would otherwise trip over, said in one line.

What torch itself refuses with a documented error is *not* checked here unless its reason can be
told better: such a case runs and is REJECTED with torch's own text.
"""

from __future__ import annotations

from fuzzshard.analysis.batches import batch_misfits, least_rows
from fuzzshard.analysis.check_options import expectation_misfits, option_misfits
from fuzzshard.analysis.checker import schedule_misfits
from fuzzshard.analysis.groups import group_of
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Alias, Block, resolve, walk
from fuzzshard.case.limits import LARGEST_DIM
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engines import specs
from fuzzshard.parts.op import Reasons


def validate(case: Case, world_size: int | None = None) -> Inferred:
    """Raises :class:`InvalidCase` unless a world of ``world_size`` ranks can run ``case``."""
    if case.mesh.size > LARGEST_DIM:  # every shape of the mesh is looked at
        raise InvalidCase(f"the mesh has {case.mesh.size} ranks", f"use at most {LARGEST_DIM}")
    found = inferred(case)
    for misfit in _misfits(case, found, world_size):
        raise InvalidCase(*misfit)
    return found


def is_valid(case: Case) -> bool:
    """Return whether some world can run ``case``."""
    try:
        validate(case)
    except InvalidCase:
        return False
    return True


def _misfits(case: Case, found: Inferred, world_size: int | None) -> Reasons:
    yield from option_misfits(case, found)
    yield from batch_misfits(case, found)
    yield from _size_misfits(case, found, world_size)
    yield from _wrap_misfits(case, found)
    yield from _tie_misfits(case)
    yield from _checkpoint_misfits(case)
    yield from schedule_misfits(case, found)
    yield from expectation_misfits(case)


def _size_misfits(case: Case, found: Inferred, world_size: int | None) -> Reasons:
    mesh = case.mesh
    if world_size is not None and mesh.size > world_size:
        yield (
            f"the mesh needs {mesh.size} ranks and the world has {world_size}",
            f"run with --world-size {mesh.size} or more",
        )
    if case.inputs.batch < 1 or case.inputs.seq < 0:
        yield "batch must be at least 1 and seq at least 0", "change inputs"
    sizes = [case.inputs.batch, *(item.rows for item in case.inputs.rank_batches)]
    dims = [*sizes, case.inputs.seq, *(d for s in found.parameters.values() for d in s)]
    if max(dims) > LARGEST_DIM:
        yield f"a tensor dimension is {max(dims)}", f"use at most {LARGEST_DIM}"
    if min((d for s in found.parameters.values() for d in s), default=1) < 1:
        yield "a parameter has a dimension of size 0", "use at least 1"
    if case.inputs.batch < least_rows(case, found):
        yield "a norm needs two values per channel", "use a batch of 2"
    if not case.engines:
        yield "the case names no engine", 'use engines=["fully_shard"]'


def _wrap_misfits(case: Case, found: Inferred) -> Reasons:
    wrapped: list[str] = []
    for group in case.wrap:
        if not group.modules:
            yield "a wrap group has no modules", "remove it"
        for path in group.modules:
            if path not in found.modules:
                yield (f"wrap names {path!r}, which is not a module", "use a path of the model")
            if path in wrapped:
                yield f"{path!r} is wrapped twice", "wrap each module once"
            if above := [w for w in wrapped if is_within(path, w)]:
                yield (f"{path!r} is wrapped after its ancestor {above[0]!r}", "wrap bottom-up")
        if any(a != b and is_within(a, b) for a in group.modules for b in group.modules):
            yield f"the modules of group {group.modules} are nested", "list siblings"
        wrapped.extend(group.modules)


def _tie_misfits(case: Case) -> Reasons:
    """Below one FSDP root torch refuses parameters tied across groups; elsewhere it cannot see
    them.
    """
    if case.root_is_wrapped:
        return
    for tie in case.ties:
        if group_of(case, tie.parameter) != group_of(case, tie.source):
            yield (
                f"{tie.parameter!r} is tied to {tie.source!r} in another group",
                "put both modules in one list group",
            )


def _checkpoint_misfits(case: Case) -> Reasons:
    targets = {m.target for _, m in walk(case.model) if isinstance(m, Alias)}
    seen: set[str] = set()
    for checkpoint in case.checkpoints:
        path = checkpoint.module
        target = resolve(case.model, path)
        if target is None or target[0] != path or path in seen:
            yield f"checkpoint names {path!r}, which is no module or named twice", "remove it"
            continue
        seen.add(path)
        if (
            checkpoint.implementation != "utils"
            and isinstance(target[1], Block)
            and target[1].has_method
        ):
            yield (
                f"a checkpoint of {path!r} would not see its {target[1].method!r}",
                'use "utils"',
            )
        if checkpoint.implementation == "utils" and not path:
            around = any(spec.wrapper for spec in specs(case.engines))
            if around or case.compile is not None:
                yield (
                    "where the root is called, DDP, FSDP1 or compile() are within its checkpoint",
                    'checkpoint it with "composable"',
                )
        if checkpoint.implementation == "wrapper" and (not path or is_within_any(path, targets)):
            yield f"the checkpoint wrapper cannot replace {path!r}", 'use "composable"'
