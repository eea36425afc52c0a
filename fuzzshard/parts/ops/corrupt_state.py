"""Losing what was trained, so that loading it proves something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from fuzzshard.parts.op import Look, Op

if TYPE_CHECKING:
    from fuzzshard.parts.op import Checked, Names, Program, ScheduleState, Trainer


class CorruptState(Op, tag="corrupt_state", frozen=True, kw_only=True):
    """Zeroes every parameter and optimizer state in place, or builds model and optimizer anew.

    A model that is built anew has other initial values.
    """

    how: Literal["zero", "rebuild"] = "zero"

    lane: ClassVar[str] = "state"
    corrupts: ClassVar[bool] = True
    wants_sharded: ClassVar[bool] = True
    looks: ClassVar[tuple[Look, ...]] = ("resumed",)
    meanings: ClassVar[Mapping[str, str]] = {
        "op:corrupt": "parameters and optimizer state zeroed",
        "op:rebuild": "model and optimizer built anew",
    }

    @property
    @override
    def rebuilds(self) -> bool:
        return self.how == "rebuild"

    @override
    def check(self, at: Checked) -> None:
        at.check_awaits_none()
        at.check_saved()

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield "op:rebuild" if self.rebuilds else "op:corrupt"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"corrupt_state({self.how!r})"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.before_change()
        if self.rebuilds:
            trainer.rebuild(index)
        else:
            trainer.zero()

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        lines = program.rebuild(index) if self.rebuilds else [*program.reshard(), *program.states.zero()]
        return [*lines, *program.watch.lines(index, ("resume",))]

    @override
    def mended(self, names: Names) -> Op | None:
        return self if names.saved else None
