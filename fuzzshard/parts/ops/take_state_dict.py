"""A state dict that is kept while training goes on."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.ops.states import draw_options, option_features, option_misfits

_IN_INFERENCE = 20
"""Percent."""


class TakeStateDict(op.Op, tag="take_state_dict", frozen=True, kw_only=True):
    """Keeps ``model.state_dict()``; its tensors are the parameters' own and must follow every
    later step. With ``inference`` it is taken under ``torch.inference_mode()``.

    With ``options``, of ``StateDictOptions``, it is a copy of what ``get_model_state_dict``
    returns.
    """

    inference: bool = False
    options: tuple[op.StateOption, ...] | None = None

    lane = "state"
    takes_state = True
    looks = ("dict",)
    meanings = {
        "op:take_state_dict": "a state dict that must follow later steps",
        "op:take_state_dict_before_forward": "a state dict taken before the first forward",
        "op:take_state_dict_in_inference": "a state dict taken under inference_mode",
        "op:get_model_state_dict": "a copy of what get_model_state_dict returns",
    }
    choices = (op.Choice("take_state_dict", 13, 0, of_stages=True),)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:take_state_dict"
        if not at.has_run:
            yield "op:take_state_dict_before_forward"
        if self.inference:
            yield "op:take_state_dict_in_inference"
        if self.options is not None:
            yield "op:get_model_state_dict"
            yield from option_features(self.options)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if self.options is not None:
            yield from option_misfits(self.options, at)

    @override
    def statement(self, index: int, *losses: int) -> str:
        mode = "with inference_mode: " if self.inference else ""
        given = "model.state_dict()"
        if self.options is not None:
            given = f"get_model_state_dict(model, options={self.options})"
        return f"{mode}kept = {given}"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.states.take(self.options, inference=self.inference)

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "between_steps" and "take_state_dict" in run.swarm:
            run.early(35).extend(cls.drawn(run))

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        inference = run.tape.chance(_IN_INFERENCE)
        options = draw_options(run) if run.tape.chance(50) else None
        took = cls(inference=inference, options=options)
        return (took if run.at.why_not(took) is None else cls(inference=inference),)
