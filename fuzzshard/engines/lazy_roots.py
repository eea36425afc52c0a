"""What ``fully_shard`` finds when its roots initialise: at the first forward of a module that it wraps.

Follows ``FSDPState._lazy_init`` (torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
"""

from __future__ import annotations

import enum
import functools

from typing_extensions import override

from fuzzshard.case.autograd import Tape, Unwatched, Value
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Alias, Block, join, resolve
from fuzzshard.case.groups import groups_within
from fuzzshard.case.progress import Progress
from fuzzshard.case.schedule import Abort, CorruptState, Forward
from fuzzshard.case.units import parameter_groups
from fuzzshard.contracts import TIES_ACROSS_GROUPS_ARE_REFUSED


class Flaw(enum.Enum):
    """What is wrong with the wrap groups of a case, or with the order in which they run."""

    LIST_GROUP_AS_ROOT = "a list group would be the root"
    ROOT_RUNS_LATER = "a group within has run before its root"
    SHARED_ACROSS_GROUPS = "a parameter is managed by two groups"
    SHARDED_TWICE = "a module is registered in two groups"


@functools.lru_cache(maxsize=8)
def flaw(case: Case) -> tuple[Flaw, int] | None:
    """The first flaw that is found and the op that finds it (-1: construction); None where there is none."""
    if _sharded_twice(case):
        return Flaw.SHARDED_TWICE, -1
    roots = _Roots(case)
    tape, progress = Tape(case, facts(case), roots), Progress(case)
    for index, op in enumerate(case.schedule):
        if isinstance(op, CorruptState) and op.how == "rebuild":
            roots.initialised.clear()
        if isinstance(op, Forward | Abort):
            called = op.target if isinstance(op, Forward) else ""
            tape.forward(called, grad=False, paths=progress.paths, frozen=(), training=True)
            if roots.flaw is not None:
                return roots.flaw, index
        progress.advance()
    return None


class _Roots(Unwatched):
    """Initialises wrap groups as modules are called."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.of_module = {m: i for i, group in enumerate(case.wrap) for m in group.modules}
        checked = parameter_groups(case).values() if TIES_ACROSS_GROUPS_ARE_REFUSED.holds() else ()
        self.shared = [groups for groups in checked if len(groups) > 1]
        self.initialised: set[int] = set()
        self.flaw: Flaw | None = None

    @override
    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        group = self.of_module.get(path)
        if group is not None and group not in self.initialised:
            self._initialise(group)
        return args

    def _initialise(self, root: int) -> None:
        within = set(groups_within(self.case, root))
        if len(self.case.wrap[root].modules) > 1:
            found = Flaw.LIST_GROUP_AS_ROOT
        elif within & self.initialised:
            found = Flaw.ROOT_RUNS_LATER
        elif any(len(groups & within) > 1 for groups in self.shared):
            found = Flaw.SHARED_ACROSS_GROUPS
        else:
            self.initialised |= within | {root}
            return
        self.flaw = self.flaw or found


def _sharded_twice(case: Case) -> bool:
    """Whether a group comes upon parameters that another one has sharded, in a module that is in both."""
    found, group_of = facts(case), {m: i for i, group in enumerate(case.wrap) for m in group.modules}
    groups: dict[str, set[int | None]] = {}

    def visit(path: str, group: int | None) -> None:
        target = resolve(case.model, path)
        assert target is not None
        path, module = target
        group = group_of.get(path, group)
        if isinstance(module, Block):
            for child in module.children:
                visit(join(path, child.name), group)
        elif not isinstance(module, Alias):
            groups.setdefault(path, set()).add(group)

    visit("", None)
    owned = {fqn.rpartition(".")[0] for fqn, owner in found.owners.items() if owner is not None}
    return any(len(among - {None}) > 1 and path in owned for path, among in groups.items())
