"""``reshard()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.op import Below, Choice, Look, Moment, Op, expression

if TYPE_CHECKING:
    from fuzzshard.parts.op import Checked, Offered, Program, Run, ScheduleState, Trainer


class Reshard(Op, tag="reshard", frozen=True, kw_only=True):
    """``FSDPModule.reshard()`` on the wrapped modules below ``target``, or on it alone."""

    target: str = ""
    recurse: bool = True

    lane: ClassVar[str] = "sharding"
    frees: ClassVar[bool] = True
    looks: ClassVar[tuple[Look, ...]] = ("registration",)
    meanings: ClassVar[Mapping[str, str]] = {"op:reshard": "an explicit reshard"}
    choices: ClassVar[tuple[Choice, ...]] = (Choice("reshard", 14, 6),)

    @property
    @override
    def below(self) -> Below:
        return Below(self.target, self.recurse)

    @override
    def apply(self, state: ScheduleState) -> None:
        if self.below.everything:
            state.reshard()

    @override
    def check(self, at: Checked) -> None:
        at.check_wrapped()

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield "op:reshard"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"{expression(self.target)}.reshard({self.below.alone.removeprefix(', ')})"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.engine.reshard(self.below)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        return program.unshard_lines(self.below, "reshard()")

    @classmethod
    @override
    def draw(cls, run: Run, moment: Moment) -> None:
        """Frees what a forward or an unshard has gathered."""
        percent = {"after_forward": 30, "after_backward": 20}.get(moment)
        if percent and run.wrapped and run.allows("reshard", percent):
            target, recurse = run.any_wrapped()
            run.ops.append(cls(target=target, recurse=recurse))

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        target, recurse = offered.below
        yield (cls(target=target, recurse=recurse),)
