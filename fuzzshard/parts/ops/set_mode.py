"""``model.train()`` and ``model.eval()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import Moment


class SetMode(op.Op, tag="set_mode", frozen=True, kw_only=True):
    """``model.train()`` or ``model.eval()``."""

    train: bool

    @override
    def check(self, at: op.Checked) -> None:
        at.check_recomputes("the mode")

    @override
    def statement(self, index: int, *losses: int) -> str:
        return "model.train()" if self.train else "model.eval()"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return [f"{scope.called}.{'train' if self.train else 'eval'}()"]

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        """There and back."""
        train = moment == "in_evaluation"
        return cls(train=train), cls(train=not train)

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        call = op.Call(batch=offered.batch, grad=offered.rng.random() < 0.3)
        yield (cls(train=False), ops.running(call), cls(train=True))
