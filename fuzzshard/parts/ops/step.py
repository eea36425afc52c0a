"""``optimizer.step()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.op import Look, Op
from fuzzshard.parts.ops.backward import Backward
from fuzzshard.parts.ops.forward import Forward
from fuzzshard.parts.ops.zero_grad import ZeroGrad

if TYPE_CHECKING:
    from fuzzshard.parts.op import Offered, Program, ScheduleState, Trainer


class Step(Op, tag="step", frozen=True, kw_only=True):
    """``optimizer.step()``."""

    lane: ClassVar[str] = "optimizer"
    looks: ClassVar[tuple[Look, ...]] = ("registration", "trained", "taken")
    updates: ClassVar[bool] = True
    wants_sharded: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, str]] = {
        "schedule:several_steps": "two optimizer steps or more",
        "schedule:no_zero_grad": "two steps with no zero_grad between them",
        "schedule:step_unsynced": "a step after a backward that did not synchronise everything",
    }

    @override
    def apply(self, state: ScheduleState) -> None:
        state.steps, state.backwards, state.zeroed = state.steps + 1, 0, False

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        if at.steps:
            yield "schedule:several_steps"
            if not at.zeroed:
                yield "schedule:no_zero_grad"
        if at.unsynced:
            yield "schedule:step_unsynced"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return "optimizer.step()"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.before_change()
        trainer.delays.at("before_step")
        trainer.optimizer.step()
        trainer.engine.after_step()
        trainer.delays.at("after_step")

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        lines = [*program.reshard(), *program.scope.wait("before_step"), "optimizer.step()"]
        lines += [*program.after_step(), *program.scope.wait("after_step")]
        return [*lines, *program.watch.lines(index, ("parameter", *program.taken_oracle))]

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        yield (Forward(batch=offered.batch), Backward(), cls(), ZeroGrad())
