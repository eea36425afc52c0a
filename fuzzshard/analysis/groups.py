"""How wrap groups and forwards meet: which modules run, and which FSDP root a group has."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

from fuzzshard.analysis.forward_walk import modules_called
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.graph import Block, Call, Module, join, modules_below, resolve
from fuzzshard.case.paths import is_within_any
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.op import Below


def wrapped_modules(case: Case) -> frozenset[str]:
    """Return the modules that a call of ``fully_shard`` names, the root among them if one does."""
    return frozenset(module for group in case.wrap for module in group.modules)


def group_of(case: Case, fqn: str) -> int | None:
    """Return the innermost wrap group that a name of a parameter is in: the first one, as groups
    are wrapped bottom-up.
    """
    return next((i for i, g in enumerate(case.wrap) if is_within_any(fqn, g.modules)), None)


def modules_named(case: Case, wrapped: Iterable[str], below: Below) -> list[str]:
    """Return those of the ``wrapped`` modules that an op is for, under whatever name they are
    below its target.
    """
    named = (
        modules_below(case.model, below.target) if below.recurse else frozenset((below.target,))
    )
    return [m for m in wrapped if m in named]


def holds_a_member(case: Case, group: WrapGroup) -> bool:
    """Return whether a module of ``group`` is registered below another one as well.

    ``fully_shard`` leaves it out of the list then (``_get_root_modules`` in
    torch/distributed/utils.py), so that it has no hooks where it is called by itself.
    """
    return any(len(modules_named(case, group.modules, Below(m))) > 1 for m in group.modules)


def calls_of(case: Case, target: str, paths: Mapping[str, int] | None = None) -> frozenset[str]:
    """Return the canonical paths of the modules that a forward of ``target`` calls, and its own.

    ``paths`` is the path of every block with alternatives (0 where it is not named); without it,
    all alternatives count as called.
    """
    return _calls_of(case.model, target, None if paths is None else tuple(sorted(paths.items())))


@functools.lru_cache(maxsize=256)  # asked at every forward, each time that a schedule is followed
def _calls_of(
    root: Block, target: str, paths: tuple[tuple[str, int], ...] | None
) -> frozenset[str]:
    seen: set[str] = set()
    taken = None if paths is None else dict(paths)

    def visit(path: str, module: Module) -> None:
        if path in seen:
            return
        seen.add(path)
        if isinstance(module, Block):
            for node in module.nodes:
                if isinstance(node, Call):
                    for name in modules_called(node, path, taken):
                        if found := resolve(root, join(path, name)):
                            visit(*found)

    if start := resolve(root, target):
        visit(*start)
    return frozenset(seen)


def uses_outside_groups(case: Case, found: Inferred, target: str) -> Iterator[tuple[str, str]]:
    """Yield (module, parameter) pairs where a forward of ``target`` uses a parameter whose group
    does not run.

    A group gathers its parameters when one of its modules is called; outside of that they are
    DTensors.
    """
    wrapped = wrapped_modules(case)
    ties = case.tied
    seen: set[tuple[str, frozenset[str]]] = set()

    def visit(path: str, module: Module, running: frozenset[str]) -> Iterator[tuple[str, str]]:
        running |= {path} & wrapped
        if (path, running) in seen:
            return
        seen.add((path, running))
        if isinstance(module, Block):
            for node in module.nodes:
                for name in node.modules if isinstance(node, Call) else ():
                    if child := resolve(case.model, join(path, name)):
                        yield from visit(*child, running)
        elif isinstance(module, Leaf):
            for name in module.parameters(found.width(path)):
                fqn = ties.get(join(path, name), join(path, name))
                owner = found.owners[fqn]
                if owner is not None and not running.intersection(case.wrap[owner].modules):
                    yield path, fqn

    if start := resolve(case.model, target):
        yield from visit(*start, frozenset())


class Roots:
    """The FSDP roots of the wrap groups of one model, as far as its forwards have run."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._roots: dict[int, int] = {}
        self._ran: set[int] = set()
        self.of_groups = self._outermost()
        """The root of each group; of those without one yet, the outermost group around it."""

    def run(self, called: frozenset[str]) -> None:
        """Take note that a forward calls these modules."""
        groups = enumerate(self._case.wrap)
        running = {i for i, g in groups if not called.isdisjoint(g.modules)} - self._ran
        if running:
            self._initialise(self._roots, running)
            self._ran |= running
            self.of_groups = self._outermost()

    def _outermost(self) -> tuple[int, ...]:
        roots, groups = {**self._roots}, range(len(self._case.wrap))
        self._initialise(roots, {*groups} - self._ran)
        return tuple(roots[index] for index in groups)

    def _initialise(self, roots: dict[int, int], running: set[int]) -> None:
        for index in sorted(running, reverse=True):  # they are wrapped bottom-up
            for group in (index, *groups_within(self._case, index)):
                roots.setdefault(group, index)


def groups_within(case: Case, index: int) -> tuple[int, ...]:
    """Return the wrap groups with a module at or below one of the group at ``index``, under
    whatever name.
    """
    below = frozenset[str]().union(
        *(modules_below(case.model, m) for m in case.wrap[index].modules)
    )
    return tuple(i for i, group in enumerate(case.wrap) if not below.isdisjoint(group.modules))
