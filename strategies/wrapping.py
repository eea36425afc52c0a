"""Wrap plans: which modules are wrapped, which of them together, and when their parameters are
resharded.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from fuzzshard.analysis.experts import weights
from fuzzshard.analysis.groups import uses_outside_groups
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.case import Case, Checkpoint, Mesh, WrapGroup
from fuzzshard.case.graph import Alias, Block, Module, resolve, walk
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.strategies.swarm import Swarm, is_cut
from fuzzshard.strategies.tape import Tape

_MOSTLY_BLOCKS = 30
"""Of 100 plans with several groups, how many wrap blocks and few leaves, as most people do."""


def wrap(
    tape: Tape, swarm: Swarm, root: Block, found: Inferred, mesh: Mesh
) -> tuple[WrapGroup, ...]:
    """Return a wrap plan with one group at least, in an order that ``fully_shard`` accepts.

    Without a wrapped root, list groups are rare: ``fully_shard`` refuses one that has no wrapped
    ancestor.
    """
    candidates = [path for path in found.modules if path and _has_parameters(found, path)]
    several = "many_groups" in swarm or "list_group" in swarm
    chosen = []
    if several:
        blocks, leaves = (95, 15) if tape.chance(_MOSTLY_BLOCKS) else (75, 45)
        chosen = [
            p
            for p in candidates
            if tape.chance(blocks if isinstance(found.modules[p], Block) else leaves)
        ]
    if several and tape.chance(60):
        targets = _alias_targets(root)
        chosen = [path for path in candidates if path in chosen or path in targets]
    if several and tape.chance(8):
        chosen += tape.some([p for p in found.modules if p and p not in candidates], 50)
    groups = [[path] for path in chosen]
    root_wrapped = not ("root_not_wrapped" in swarm and tape.chance(60))
    if "list_group" in swarm and (root_wrapped or tape.chance(15)):
        groups = _with_list_group(tape, found, groups)
    if root_wrapped:
        groups.append([""])
    elif not groups or tape.chance(50):
        covered = [path for group in groups for path in group]
        groups += [[p] for p in candidates if "." not in p and not is_within_any(p, covered)]
    if not groups:
        groups = [[""]]
    groups.sort(key=lambda group: -max(_depth(path) for path in group))
    options = {o.name: o.values(swarm, mesh.shard) for o in GROUP_OPTIONS if o.choices}
    return tuple(
        WrapGroup(
            modules=tuple(group),
            **{name: tape.weighted(values) for name, values in options.items()},
        )
        for group in groups
    )


def _has_parameters(found: Inferred, path: str) -> bool:
    return any(is_within(fqn, path) for fqn in found.parameters)


def _alias_targets(root: Block) -> set[str]:
    found = (resolve(root, module.target) for _, module in walk(root) if isinstance(module, Alias))
    return {target[0] for target in found if target}


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _with_list_group(tape: Tape, found: Inferred, groups: list[list[str]]) -> list[list[str]]:
    """Joins two or three of the groups where they are not nested and some order stays bottom-up.

    Groups are applied by their deepest module, so a block may join only at that depth: modules
    wrapped within it come earlier then.
    """
    if len(groups) < 2 or tape.chance(20, simpler=True):
        return groups
    joined = groups[tape.below(len(groups))][:]
    for _ in range(1 + tape.chance(30)):
        fitting = [g for g in groups if g[0] not in joined and _may_join(found, joined, g[0])]
        if fitting:
            joined += tape.pick(fitting)
    return [g for g in groups if g[0] not in joined] + [joined]


def _may_join(found: Inferred, joined: list[str], path: str) -> bool:
    if any(is_within(path, other) or is_within(other, path) for other in joined):
        return False
    deepest = max(map(_depth, [*joined, path]))
    return all(
        _depth(other) == deepest or not isinstance(found.modules[other], Block)
        for other in [*joined, path]
    )


def experts_apart(tape: Tape, case: Case) -> Case:
    """Wraps mixtures of experts by themselves, and first, or leaves them in the group that
    manages them beside others.
    """
    owners = inferred(case).owners
    apart = [p for p, fqn in weights(case).items() if owners.get(fqn) is None or tape.chance(60)]
    own = [
        next((g for g in case.wrap if g.modules == (path,)), WrapGroup(modules=(path,)))
        for path in apart
    ]
    return replace(case, wrap=(*own, *_groups_without(apart, case)))


def self_contained(case: Case) -> Case:
    """Wraps every leaf by itself, and first, that is called where the group that manages it does
    not run.

    That happens to modules registered twice: within a wrapped block and outside of it.
    """
    while outside := next(uses_outside_groups(case, inferred(case), ""), None):
        leaf = outside[0]
        case = replace(case, wrap=(WrapGroup(modules=(leaf,)), *_groups_without({leaf}, case)))
    return case


def _groups_without(modules: Collection[str], case: Case) -> list[WrapGroup]:
    """Return the wrap groups without these modules, but for those that have no others."""
    fewer = (
        replace(g, modules=tuple(m for m in g.modules if m not in modules)) for g in case.wrap
    )
    return [group for group in fewer if group.modules]


def checkpoints(
    tape: Tape, swarm: Swarm, root: Block, found: Inferred, wrap: tuple[WrapGroup, ...]
) -> tuple[Checkpoint, ...]:
    """Return up to two checkpointed modules, by preference wrapped ones or those around such: the
    recomputation of these calls groups whose post-backward may have come already.
    """
    if "checkpoint" not in swarm:
        return ()
    wrapped = [module for group in wrap for module in group.modules]
    called = [
        path for path in found.modules if path in found.called and _has_parameters(found, path)
    ]
    preferred = [path for path in called if path and path in wrapped]
    spanning = [path for path in called if any(p != path and is_within(p, path) for p in wrapped)]
    targets = {module.target for _, module in walk(root) if isinstance(module, Alias)}
    chosen: dict[str, Checkpoint] = {}
    for _ in range(1 + tape.chance(30)):
        others = spanning if spanning and tape.chance(60) else called
        path = tape.pick(preferred if preferred and tape.chance(60) else others)
        offered = _implementations(found.modules[path], path, targets)
        if is_cut(swarm) and "." not in path:  # stages call children, and utils is of the caller
            offered = tuple(name for name in offered if name != "utils") or offered
        implementation = tape.pick(offered)
        made = Checkpoint(module=path, implementation=implementation)  # type: ignore[arg-type]
        chosen.setdefault(path, made)
    return tuple(chosen.values())


def _implementations(module: Module, path: str, targets: set[str]) -> tuple[str, ...]:
    """Return those that can recompute a module: hooks see its ``forward`` only, and the root has
    no caller.
    """
    if not path:
        return ("composable",)
    if isinstance(module, Block) and module.has_method:
        return ("utils",)
    if is_within_any(path, targets):
        return ("composable", "utils")
    return ("composable", "wrapper", "utils")
