"""Loading what was saved."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import MODIFIED, Moment


class LoadState(op.Op, tag="load_state", frozen=True, kw_only=True):
    """Loads what was saved last, the way it was saved.

    ``assign`` is that of ``load_state_dict``. A checkpoint is loaded in place, into the tensors of
    the state dicts, or with ``assign`` into copies that ``set_model_state_dict`` and its like are
    given.
    """

    assign: bool = False

    lane = "state"
    takes_state = True
    loads = True
    never = {"forward_to_backward": MODIFIED}
    looks = ("trained", "buffers", "optimizer", "taken")
    meanings = {
        "op:load": "a saved state loaded in place",
        "op:load_assign": "a saved state loaded with assign=True",
    }

    @override
    def check(self, at: op.Checked) -> None:
        if self.assign and at.saved == "state_dict" and at.case.ties:
            raise InvalidCase(
                "load_state_dict(assign=True) unties parameters, in any model",
                "load with assign=False",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:load_assign" if self.assign else "op:load"

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"load_state({'assign=True' if self.assign else ''})"

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        variables = ", ".join([*trainer.case.optimizer.each, "scheduler"])
        states, renewed = trainer.engine.scope.states, [f"{variables} = renewed()"]
        trainer.execute(states.load(trainer.at.saved, renewed, assign=self.assign))
        if self.assign:
            trainer.forget_tensors()

    @override
    def lines(self, program: op.Program, index: int) -> list[str]:
        states, renewed = program.scope.states, program.renewed()
        lines = states.load(program.at.saved, renewed, assign=self.assign)
        program.taken &= not self.assign
        return [*lines, *program.look(index)]

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        """What was saved last, again."""
        if "save_load" not in run.swarm:
            return ()
        lost: op.Lost | None = None
        if run.tape.chance(60):
            lost = "rebuild" if run.tape.chance(30) else "zero"
        return ops.restoring(lost, assign=run.tape.chance(50))
