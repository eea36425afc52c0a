"""``model.train()``, ``model.eval()`` and ``torch.set_grad_enabled()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import Moment


class SetMode(op.Op, tag="set_mode", frozen=True, kw_only=True):
    """``model.train()`` or ``model.eval()``."""

    train: bool

    sets_mode = True

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.training = self.train

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        return at.recomputed_misfits("the mode")

    @override
    def statement(self, index: int, *losses: int) -> str:
        return "model.train()" if self.train else "model.eval()"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return [f"{scope.called}.{'train' if self.train else 'eval'}()"]

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        """Return ops there and back."""
        train = moment == "in_evaluation"
        return cls(train=train), cls(train=not train)


class SetGradEnabled(op.Op, tag="set_grad_enabled", frozen=True, kw_only=True):
    """``torch.set_grad_enabled(enabled)``, for all ops from now on: a region under ``no_grad``."""

    enabled: bool

    sets_mode = True
    says = "torch.set_grad_enabled({op.enabled})"
    meanings = {"op:no_grad_region": "ops other than a forward while gradients are disabled"}

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.grad_enabled = self.enabled

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        if not self.enabled:
            yield "op:no_grad_region"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return [f"torch.set_grad_enabled({self.enabled})"]
