"""Losing what was trained, so that loading it proves something."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import MODIFIED


class CorruptState(op.Op, tag="corrupt_state", frozen=True, kw_only=True):
    """Zeroes every parameter and optimizer state in place, or builds model and optimizer anew.

    A model that is built anew has other initial values.
    """

    how: op.Lost = "zero"

    says = "corrupt_state({op.how!r})"
    lane = "state"
    corrupts = True
    never = {"forward_to_backward": MODIFIED}
    looks = ("corrupted",)
    meanings = {
        "op:corrupt": "parameters and optimizer state zeroed",
        "op:rebuild": "model and optimizer built anew",
    }

    @property
    @override
    def rebuilds(self) -> bool:
        return self.how == "rebuild"

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:rebuild" if self.rebuilds else "op:corrupt"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.states.zero()

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        if self.rebuilds:
            trainer.rebuild(index)
        else:
            super().run(trainer, index)

    @override
    def lines(self, program: op.Program, index: int) -> list[str]:
        if not self.rebuilds:
            return super().lines(program, index)
        return [*program.rebuild(index), *program.look(index)]
