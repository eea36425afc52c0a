"""What ``fully_shard`` finds when its roots initialise: at the first forward of a module that it
wraps.

Follows ``FSDPState._lazy_init`` (torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
"""

from __future__ import annotations

import enum
import functools

from typing_extensions import override

from fuzzshard.analysis.autograd import AutogradGraph, Value, Watcher
from fuzzshard.analysis.groups import group_of, groups_within
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.graph import modules_below


class Flaw(enum.Enum):
    """What is wrong with the wrap groups of a case, or with the order in which they run."""

    LIST_GROUP_AS_ROOT = "a list group would be the root"
    ROOT_RUNS_LATER = "a group within has run before its root"
    SHARED_ACROSS_GROUPS = "a parameter is managed by two groups"


@functools.lru_cache(maxsize=8)
def flaw(case: Case) -> tuple[Flaw, int] | None:
    """Return the first flaw that is found and the op that finds it; None where there is none."""
    roots = _Roots(case)
    autograd = AutogradGraph(case, inferred(case), roots)
    for at in follow(case):
        if at.op.rebuilds is not None:
            roots.initialised.clear()
        if (call := at.op.begins) is not None:
            autograd.forward(call.target, grad=False, paths=at.paths, frozen=(), training=True)
            if roots.flaw is not None:
                return roots.flaw, at.index
    return None


class _Roots(Watcher):
    """Initialises wrap groups as modules are called."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.of_module = {m: i for i, group in enumerate(case.wrap) for m in group.modules}
        owners = inferred(case).owners
        self.shared = [
            {group_of(case, n) for tie in case.ties if tie.source == f for n in (tie.parameter, f)}
            for f in {tie.source for tie in case.ties if owners[tie.source] is not None}
        ]
        """The groups that tied parameters are registered in, where some group manages them."""
        self.initialised: set[int] = set()
        self.flaw: Flaw | None = None

    @override
    def enter(self, path: str, args: tuple[Value, ...], *, grad: bool) -> tuple[Value, ...]:
        group = self.of_module.get(path)
        if group is not None and group not in self.initialised:
            self._initialise(group)
        return args

    def _initialise(self, root: int) -> None:
        # A list may hold a module and one below it. torch gives the latter no hooks, and may then
        # raise; no documentation says so (mends/nested_list_member_is_dropped).
        within = set(groups_within(self.case, root))
        if len(_outermost(self.case, self.case.wrap[root])) > 1:
            found = Flaw.LIST_GROUP_AS_ROOT
        elif within & self.initialised:
            found = Flaw.ROOT_RUNS_LATER
        elif any(len(groups & within) > 1 for groups in self.shared):
            found = Flaw.SHARED_ACROSS_GROUPS
        else:
            self.initialised |= within | {root}
            return
        self.flaw = self.flaw or found


def _outermost(case: Case, group: WrapGroup) -> list[str]:
    """Return the modules of a group that no other one of it contains, under whatever name
    (``_get_root_modules`` in torch/distributed/utils.py).
    """
    below = {module: modules_below(case.model, module) for module in group.modules}
    return [
        m
        for m in group.modules
        if not any(m in below[other] for other in group.modules if other != m)
    ]
