"""``reshard()``."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Moment


class Reshard(op.OnGroups, tag="reshard", frozen=True, kw_only=True):
    """``FSDPModule.reshard()`` on the wrapped modules below ``target``, or on it alone."""

    target: str = ""
    recurse: bool = True

    lane = "sharding"
    looks = ("registered",)
    meanings = {"op:reshard": "an explicit reshard"}
    choices = (op.Choice("reshard", 14, 6),)

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.shard(self.below)

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"{op.expression(self.target)}.reshard({'' if self.recurse else 'recurse=False'})"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.on_groups(self.below, lambda module: [f"{module}.reshard()"])

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Frees what a forward or an unshard has gathered."""
        percent = {"after_forward": 30, "after_backward": 20}.get(moment)
        if percent and run.wrapped and run.allows("reshard", percent):
            run.add(cls._drawn(run))

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls._drawn(run),) if run.wrapped and "reshard" in run.swarm else ()

    @classmethod
    def _drawn(cls, run: op.Run) -> Self:
        target, recurse = run.any_wrapped()
        return cls(target=target, recurse=recurse)
