"""``clip_grad_norm_()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.op import Choice, Look, Moment, Op
from fuzzshard.parts.ops.step import Step

if TYPE_CHECKING:
    from fuzzshard.parts.op import Checked, Offered, Program, Run, ScheduleState, Trainer


class ClipGradNorm(Op, tag="clip_grad_norm", frozen=True, kw_only=True):
    """``clip_grad_norm_`` over all parameters; FSDP1 has a method of its own for it."""

    max_norm: float
    norm_type: float = 2.0

    lane: ClassVar[str] = "optimizer"
    clips: ClassVar[bool] = True
    looks: ClassVar[tuple[Look, ...]] = ("gradients",)
    meanings: ClassVar[Mapping[str, str]] = {"op:clip": "clip_grad_norm_"}
    choices: ClassVar[tuple[Choice, ...]] = (
        # DTensors on two meshes have no norm
        Choice("clip", 18, 4, excluded_by=("tensor",)),
    )

    @override
    def check(self, at: Checked) -> None:
        if min(self.max_norm, self.norm_type) <= 0:
            raise InvalidCase("a norm is not positive", "use a positive number")

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield "op:clip"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"clip_grad_norm_({self.max_norm}, norm_type={self.norm_type})"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.engine.clip_grad_norm(self.max_norm, self.norm_type)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        lines = program.clip_lines(f"{self.max_norm}, {self.norm_type}")
        return [*lines, *program.watch.lines(index, ("gradient",))]

    @classmethod
    @override
    def draw(cls, run: Run, moment: Moment) -> None:
        if moment == "before_step" and not run.restore and run.allows("clip", 75):
            norm_type = 1.0 if run.tape.chance(25) else 2.0
            run.ops.append(cls(max_norm=run.tape.pick((1.0, 0.25, 8.0)), norm_type=norm_type))

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        yield (cls(max_norm=1.0), Step())
