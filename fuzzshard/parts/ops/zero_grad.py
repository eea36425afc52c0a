"""``optimizer.zero_grad()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.op import Op

if TYPE_CHECKING:
    from fuzzshard.parts.op import Offered, Program, ScheduleState, Trainer


class ZeroGrad(Op, tag="zero_grad", frozen=True, kw_only=True):
    """``optimizer.zero_grad(set_to_none=...)``."""

    set_to_none: bool = True

    lane: ClassVar[str] = "optimizer"
    zeroes_gradients: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, str]] = {
        "schedule:zero_grad_to_none": "gradients zeroed by removing them",
        "schedule:zero_grad_to_zero": "gradients zeroed in place",
    }

    @property
    @override
    def drops_gradients(self) -> bool:
        return self.set_to_none

    @override
    def apply(self, state: ScheduleState) -> None:
        state.zeroed = True

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield f"schedule:zero_grad_to_{'none' if self.set_to_none else 'zero'}"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"optimizer.zero_grad(set_to_none={self.set_to_none})"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.optimizer.zero_grad(set_to_none=self.set_to_none)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        return [f"optimizer.zero_grad({'' if self.set_to_none else 'set_to_none=False'})"]

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        yield (cls(set_to_none=offered.rng.random() < 0.5),)
