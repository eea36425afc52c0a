"""``model.train()`` and ``model.eval()``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.op import Op
from fuzzshard.parts.ops.forward import Forward

if TYPE_CHECKING:
    from fuzzshard.parts.op import Checked, Offered, Program, ScheduleState, Trainer


class SetMode(Op, tag="set_mode", frozen=True, kw_only=True):
    """``model.train()`` or ``model.eval()``."""

    train: bool

    prepares: ClassVar[bool] = True
    keeps_parameters: ClassVar[bool] = True

    @override
    def apply(self, state: ScheduleState) -> None:
        state.training = self.train

    @override
    def check(self, at: Checked) -> None:
        at.check_recomputes("the mode")

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return "model.train()" if self.train else "model.eval()"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.engine.module.train(self.train)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        return self.lines_again(program)

    @override
    def lines_again(self, program: Program) -> list[str]:
        return [f"{program.scope.called}.{'train' if self.train else 'eval'}()"]

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        forward = Forward(batch=offered.batch, grad=offered.rng.random() < 0.3)
        yield (cls(train=False), forward, cls(train=True))
