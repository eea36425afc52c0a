"""``optimizer.step()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import MODIFIED, Moment, Never


class Step(op.Op, tag="step", frozen=True, kw_only=True):
    """``optimizer.step()``."""

    says = "optimizer.step()"
    lane = "optimizer"
    looks = ("registered", "trained", "stepped", "taken")
    updates = uses_gradients = wants_sharded = of_optimizer = True
    never = {
        "forward_to_backward": MODIFIED,
        "between_microbatches": Never("a step ends the microbatches"),
    }
    meanings = {
        "schedule:several_steps": "two optimizer steps or more",
    }

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.step()

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.scaling_misfits()

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield from at.late_change()
        if at.steps:
            yield "schedule:several_steps"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        before, after = scope.script.beside_step(scope.case, scope.called)
        return [
            *scope.for_wrapper(before, []),
            *scope.case.optimizer.step_lines(),
            *scope.event_lines,
            *scope.for_wrapper(after, []),
        ]

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        trainer.delays.at("before_step")
        super().run(trainer, index)
        trainer.delays.at("after_step")

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "update":
            run.add(cls())

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls(),)
