"""The units of FSDP1: every wrapped module and the root, each with one flat parameter of its
own.
"""

from __future__ import annotations

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, join, resolve
from fuzzshard.case.paths import is_within
from fuzzshard.parts.leaf import Leaf

ROOT = ""


def unit_modules(case: Case) -> tuple[str, ...]:
    """Return the wrapped modules without the root, in the order in which they are wrapped."""
    return tuple(module for group in case.wrap for module in group.modules if module != ROOT)


def parameter_units(case: Case) -> dict[str, frozenset[str]]:
    """Return the units in which each parameter is registered, by its FQN: several if it is shared
    across units.

    A unit has what no unit within it has (``FullyShardedDataParallel``, docstring: modules are
    wrapped bottom-up); the root unit is always there.
    """
    found = inferred(case)
    units = {ROOT, *unit_modules(case)}
    ties = case.tied
    owners: dict[str, set[str]] = {fqn: set() for fqn in found.parameters}

    def visit(path: str, unit: str) -> None:
        target = resolve(case.model, path)
        assert target is not None
        path, module = target
        unit = path if path in units else unit
        if isinstance(module, Block):
            for child in module.children:
                visit(join(path, child.name), unit)
        elif isinstance(module, Leaf):
            for name in module.parameters(found.width(path)):
                fqn = join(path, name)
                owners[ties.get(fqn, fqn)].add(unit)

    visit(ROOT, ROOT)
    return {fqn: frozenset(names) for fqn, names in owners.items()}


def parameter_groups(case: Case) -> dict[str, frozenset[int]]:
    """Return the wrap groups (indices into ``case.wrap``) that come upon each parameter when they
    are applied.

    More than its owner where it is tied across groups: the call of ``fully_shard`` that comes
    later shards it once more, which torch refuses in the first forward only
    (``_validate_no_duplicate_params``).
    """
    group_of = {module: index for index, group in enumerate(case.wrap) for module in group.modules}
    owners = inferred(case).owners
    return {
        fqn: frozenset(
            group_of[name] for name in names if name in group_of and owners[fqn] is not None
        )
        for fqn, names in parameter_units(case).items()
    }


def units(case: Case) -> dict[str, tuple[str, ...]]:
    """Return the parameters of every unit that has any."""
    members: dict[str, list[str]] = {}
    for fqn, names in parameter_units(case).items():
        for name in names:
            members.setdefault(name, []).append(fqn)
    return {unit: tuple(fqns) for unit, fqns in members.items()}


def splits_a_unit(case: Case, target: str) -> bool:
    """Return whether ``target`` (a module or parameter) has some parameters of a unit, and not all
    of them.
    """
    inside = (tuple(is_within(fqn, target) for fqn in fqns) for fqns in units(case).values())
    return any(any(flags) and not all(flags) for flags in inside)
