"""``optimizer.zero_grad()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Moment


class ZeroGrad(op.Op, tag="zero_grad", frozen=True, kw_only=True):
    """``optimizer.zero_grad(set_to_none=...)``."""

    set_to_none: bool = True

    says = "optimizer.zero_grad(set_to_none={op.set_to_none})"
    lane = "optimizer"
    uses_gradients = of_optimizer = True
    meanings = {
        "schedule:zero_grad_to_none": "gradients zeroed by removing them",
        "schedule:zero_grad_to_zero": "gradients zeroed in place",
    }

    @property
    @override
    def zeroes(self) -> op.Zeroed:
        return "none" if self.set_to_none else "zero"

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.zero(self.zeroes)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"schedule:zero_grad_to_{self.zeroes}"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        given = "" if self.set_to_none else "set_to_none=False"
        return [f"{name}.zero_grad({given})" for name in scope.case.optimizer.each]

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Draw one or nothing: gradients then accumulate over steps, unless these took out a
        scale.
        """
        if moment == "new_gradients" and (run.at.unscaled or not run.allows("no_zero_grad", 45)):
            run.add(cls(set_to_none=not run.allows("zero_to_zero", 60)))

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls(set_to_none=run.tape.chance(50)),)
