"""Flags of the synchronisation and resharding of wrapped modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Moment

SYNC_FLAGS: tuple[op.Flag, ...] = ("requires_gradient_sync", "requires_all_reduce")
"""Those that say what is reduced in a backward: what ``no_sync()`` is for engines that have no
flags.
"""

_CHOICES: Mapping[str, op.Flag] = {
    "no_sync": "requires_gradient_sync",
    "partial_sync": "requires_gradient_sync",
    "no_all_reduce": "requires_all_reduce",
    "not_last_backward": "is_last_backward",
    "no_reshard": "reshard_after_backward",
}
"""The choices of swarms that every schedule may make, and their flags."""


class SetFlag(op.OnGroups, tag="set_flag", frozen=True, kw_only=True):
    """``FSDPModule.set_<flag>(value)`` on the wrapped modules below ``target``, or on it alone.

    For DDP the first two at the root are ``no_sync()``; the others have no counterpart.
    """

    flag: op.Flag
    value: bool
    target: str = ""
    recurse: bool = True

    sets_mode = True
    says = "{at}.set_{op.flag}({op.value}{alone})"
    meanings = {
        "op:set_reshard_after_forward": "set_reshard_after_forward during training",
        "op:set_sync_of_some": "a flag of the synchronisation of some modules only",
    }
    choices = (op.Choice("set_reshard", 12, 7),)

    @property
    def switch(self) -> op.Switch:
        """The flag that it sets."""
        return op.Switch(self.flag, self.value, self.below)

    @property
    @override
    def restored_by(self) -> Self:
        return replace(self, value=not self.value)

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.set_flag(self.switch)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        if self.flag == "reshard_after_forward":
            yield "op:set_reshard_after_forward"
        if self.flag in SYNC_FLAGS and not self.below.everything:
            yield "op:set_sync_of_some"

    @override
    def noun(self, *, no_sync: bool = False) -> str:
        if no_sync:
            return f"the {'end' if self.value else 'begin'} of no_sync()"
        return f"set_{self.flag}({self.value}) of {self.target or 'the root'}"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        """Say it: all setters of a wrapped module but one go through those below it themselves."""
        call, goes_below = f"set_{self.flag}({self.value}", self.flag != "is_last_backward"
        if scope.engine.shards_stages(scope.case):
            return []
        if goes_below and self.target in scope.now.modules:
            below, alone = op.Below(self.target, recurse=False), self.below.alone
        else:
            below, alone = self.below, ", recurse=False" * goes_below
        return scope.on_groups(below, lambda module: [f"{module}.{call}{alone})"])

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        """Return off and on again, or another ``reshard_after_forward``, which stays."""
        flags = [flag for choice, flag in _CHOICES.items() if choice in run.swarm]
        if "set_reshard" in run.swarm:
            flags += ["reshard_after_forward"] * 2
        if not run.wrapped or not flags:
            return ()
        flag, below = run.tape.pick(flags), run.any_wrapped(35)
        off = cls(flag=flag, value=False, target=below.target, recurse=below.recurse)
        on = replace(off, value=True)
        if flag == "reshard_after_forward":
            return (run.tape.pick((off, on)),)
        return off, on

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Draw another ``reshard_after_forward`` from now on."""
        drawn = moment == "between_steps" and "set_reshard" in run.swarm
        for _ in range(1 + run.tape.chance(40)) if drawn else ():
            place, below = run.early(35), run.any_wrapped(35)
            new = cls(flag="reshard_after_forward", value=run.tape.chance(50), target=below.target)
            place.append(replace(new, recurse=below.recurse))


def drawn_off(run: op.Run) -> list[op.Switch]:
    """Return the flags that are off in all rounds of a step but the last: each flag of each module
    once.
    """
    chosen: dict[tuple[op.Flag, str], op.Switch] = {}
    for choice, flag in _CHOICES.items():
        rare = choice == "no_all_reduce" and run.case.mesh.replicate is None
        if choice in run.swarm and run.tape.chance(10 if rare else 75):
            partial = choice == "partial_sync" or (choice != "no_sync" and run.tape.chance(20))
            off = run.off(flag, partial=partial)
            chosen.setdefault((flag, off.below.target), off)
    return [*chosen.values()]


def flags_set(schedule: Iterable[op.Op]) -> frozenset[op.Flag]:
    """Return the flags that some ops set."""
    return frozenset(each.flag for each in schedule if isinstance(each, SetFlag))
