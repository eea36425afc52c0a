"""Loading what was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.op import Look, Op

if TYPE_CHECKING:
    from fuzzshard.parts.op import Checked, Names, Program, ScheduleState, Trainer


class LoadState(Op, tag="load_state", frozen=True, kw_only=True):
    """Loads what was saved last, the way it was saved.

    ``assign`` is that of ``load_state_dict``. A checkpoint is loaded in place, into the tensors of the state
    dicts, or with ``assign`` into copies that ``set_model_state_dict`` and its like are given.
    """

    assign: bool = False

    lane: ClassVar[str] = "state"
    takes_state: ClassVar[bool] = True
    loads: ClassVar[bool] = True
    looks: ClassVar[tuple[Look, ...]] = ("trained", "buffers", "optimizer", "taken")
    meanings: ClassVar[Mapping[str, str]] = {
        "op:load": "a saved state loaded in place",
        "op:load_assign": "a saved state loaded with assign=True",
    }

    @property
    @override
    def assigns(self) -> bool:
        return self.assign

    @override
    def check(self, at: Checked) -> None:
        at.check_awaits_none()
        at.check_saved()
        if self.assign and at.saved == "state_dict" and at.case.ties:
            raise InvalidCase(
                "load_state_dict(assign=True) unties parameters, in any model", "load with assign=False"
            )

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield "op:load_assign" if self.assign else "op:load"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"load_state({'assign=True' if self.assign else ''})"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.states.load(trainer, assign=self.assign)
        if self.assign:
            trainer.forget_tensors()

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        lines = program.states.load(program.renewed(), assign=self.assign)
        program.taken &= not self.assign
        oracles = ("parameter", "buffer", "resume", *program.taken_oracle)
        return [*lines, *program.watch.lines(index, oracles)]

    @override
    def mended(self, names: Names) -> Op | None:
        return self if names.saved else None
