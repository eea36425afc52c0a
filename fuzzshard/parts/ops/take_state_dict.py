"""A state dict that is kept while training goes on."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op

_IN_INFERENCE = 20
"""Percent."""


class TakeStateDict(op.Op, tag="take_state_dict", frozen=True, kw_only=True):
    """Keeps ``model.state_dict()``; its tensors are the parameters' own and must follow every
    later step. With ``inference`` it is taken under ``torch.inference_mode()``.
    """

    inference: bool = False

    lane = "state"
    takes_state = True
    looks = ("dict",)
    meanings = {
        "op:take_state_dict": "a state dict that must follow later steps",
        "op:take_state_dict_before_forward": "a state dict taken before the first forward",
        "op:take_state_dict_in_inference": "a state dict taken under inference_mode",
    }
    choices = (op.Choice("take_state_dict", 13, 0, new=True, of_stages=True),)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:take_state_dict"
        if not at.has_run:
            yield "op:take_state_dict_before_forward"
        if self.inference:
            yield "op:take_state_dict_in_inference"

    @override
    def statement(self, index: int, *losses: int) -> str:
        mode = "with inference_mode: " if self.inference else ""
        return f"{mode}kept = model.state_dict()"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.states.take(inference=self.inference)

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "between_steps" and "take_state_dict" in run.swarm:
            run.early(35).extend(cls.drawn(run))

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        return (cls(inference=run.tape.chance(_IN_INFERENCE)),)
