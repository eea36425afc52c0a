"""Where gradients are averaged by hand, worked out from the schedule: the script states it, op by op.

The rules are those of :mod:`fuzzshard.engines.sync`, which needs torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.groups import root_groups
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule import Backward, Forward, SetFlag, Step, ZeroGrad

Owner = int | None


class Flags:
    """Which wrap groups reduce in the next backward; None stands for what no group manages."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.reduce: dict[Owner, bool] = dict.fromkeys((None, *range(len(case.wrap))), True)
        self.all_reduce = dict(self.reduce)

    def set(self, op: SetFlag) -> None:
        """Applies one op."""
        if op.flag not in ("requires_gradient_sync", "requires_all_reduce"):
            return
        for owner in self.reduce:
            if self._names(op, owner):
                self.all_reduce[owner] = op.value
                if op.flag == "requires_gradient_sync":
                    self.reduce[owner] = op.value

    def _names(self, op: SetFlag, owner: Owner) -> bool:
        if owner is None:
            return op.recurse and not op.target
        modules = self.case.wrap[owner].modules
        return any(is_within(m, op.target) if op.recurse else m == op.target for m in modules)

    def synced(self, owner: Owner) -> bool:
        """Whether a backward now averages the gradients of this group over the whole mesh."""
        return self.reduce[owner] and (self.all_reduce[owner] or self.case.mesh.replicate is None)


@dataclasses.dataclass(frozen=True)
class SyncPlan:
    """``unsynced``: by backward, the parameters that it only accumulates.

    ``roots``: by parameter, its FSDP root, where there are several: a backward only finalises the groups
    of the roots that it goes through. ``through``: by backward, the roots whose modules its forwards
    called by themselves: it finalises them even if it brings them no gradient. ``plain``: gradients may
    add up in ``.grad`` and be averaged there, because nothing reads them, or adds to them what is
    averaged already, in between.
    """

    unsynced: Mapping[int, tuple[str, ...]]
    names: tuple[str, ...]
    roots: Mapping[str, Owner]
    through: Mapping[int, frozenset[int]]
    plain: bool


def sync_plan(
    case: Case, last: int, by_hand: Collection[Owner], taken: Mapping[int, list[int]], reads: set[int]
) -> SyncPlan:
    """For ops up to ``last``; by backward, ``taken`` are its forwards; ``.grad`` is read after ``reads``."""
    owners = {name: owner for name, owner in facts(case).owners.items() if owner in by_hand}
    flags = Flags(case)
    groups = root_groups(case)
    roots = {name: None if owner is None else groups[owner] for name, owner in owners.items()}
    several = len(set(roots.values())) > 1
    unsynced: dict[int, tuple[str, ...]] = {}
    plain, averaged, local = True, False, False
    for index, op in enumerate(case.schedule[: last + 1]):
        match op:
            case SetFlag():
                flags.set(op)
            case Backward() if index in taken:
                names = tuple(name for name, owner in owners.items() if not flags.synced(owner))
                unsynced[index] = names
                everything, nothing = len(names) == len(owners), not names
                plain &= not averaged and (everything or nothing)
                plain &= not (names and (several or index in reads))
                averaged, local = averaged or nothing, bool(names)
            case Step():
                plain &= not local
            case ZeroGrad():
                plain &= not local
                averaged = False
            case _:
                pass
    if not several or not any(unsynced.values()):
        return SyncPlan(unsynced, tuple(owners), {}, {}, plain)
    through = {index: _roots_called(case, groups, forwards) for index, forwards in taken.items()}
    return SyncPlan(unsynced, tuple(owners), roots, through, plain)


def _roots_called(case: Case, groups: Sequence[int], forwards: list[int]) -> frozenset[int]:
    targets = {op.target for op in (case.schedule[i] for i in forwards) if isinstance(op, Forward)}
    return frozenset(r for r, group in zip(groups, case.wrap, strict=True) if targets & {*group.modules})
