"""``reshard()``."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Moment


class Reshard(op.Op, tag="reshard", frozen=True, kw_only=True):
    """``FSDPModule.reshard()`` on the wrapped modules below ``target``, or on it alone."""

    target: str = ""
    recurse: bool = True

    lane = "sharding"
    frees = True
    looks = ("registered",)
    meanings = {"op:reshard": "an explicit reshard"}
    choices = (op.Choice("reshard", 14, 6),)

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"{op.expression(self.target)}.reshard({'' if self.recurse else 'recurse=False'})"

    @override
    def calls(self, module: str, case: op.Case) -> list[str]:
        return [f"{module}.reshard()"]

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.on_groups(self)

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
