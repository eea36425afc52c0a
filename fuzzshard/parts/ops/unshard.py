"""``unshard()``."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Moment


class Unshard(op.OnGroups, tag="unshard", frozen=True, kw_only=True):
    """``FSDPModule.unshard(async_op)`` on the wrapped modules below ``target``, or on it alone.

    ``wait``: the handle that an ``async_op`` returns is waited for.
    """

    target: str = ""
    recurse: bool = True
    async_op: bool = False
    wait: bool = False

    says = "{at}.unshard(async_op={op.async_op}{alone})"
    lane = "sharding"
    looks = ("registered",)
    meanings = {
        "op:unshard": "an explicit unshard",
        "op:unshard_async": "an explicit unshard that does not wait",
        "op:unshard_wait": "unshard(async_op=True), whose handle is waited for",
    }
    choices = (op.Choice("unshard", 9, 5),)

    @property
    def waits(self) -> bool:
        """Whether parameters are there after it, and not only on their way."""
        return self.wait or not self.async_op

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.gather(self.below, waits=self.waits)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield (
            "op:unshard_async"
            if not self.waits
            else "op:unshard_wait"
            if self.async_op
            else "op:unshard"
        )

    @override
    def statement(self, index: int, *losses: int) -> str:
        return super().statement(index) + (".wait()" if self.async_op and self.wait else "")

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        waits = ".wait()" if self.async_op and self.wait else ""
        call = f"unshard({'async_op=True' if self.async_op else ''}){waits}"
        return scope.on_groups(self.below, lambda module: [f"{module}.{call}"])

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        super().run(trainer, index)
        if self.waits:
            trainer.engine.gather(self.below)

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Gathers parameters ahead of the forward that needs them."""
        if moment == "before_forward" and run.wrapped and run.allows("unshard", 45):
            run.add(cls._drawn(run))

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls._drawn(run),) if run.wrapped and "unshard" in run.swarm else ()

    @classmethod
    def _drawn(cls, run: op.Run) -> Self:
        target, recurse = run.any_wrapped()
        how = run.tape.weighted((("async", 40), ("waited for", 20), ("at once", 40)))
        wait = how == "waited for"
        return cls(target=target, recurse=recurse, async_op=how != "at once", wait=wait)
