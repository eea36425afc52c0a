"""A state dict that is kept while training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.op import Choice, Look, Op

if TYPE_CHECKING:
    from fuzzshard.parts.op import Boundaries, Offered, Program, ScheduleState, Trainer


class TakeStateDict(Op, tag="take_state_dict", frozen=True, kw_only=True):
    """Keeps ``model.state_dict()``; its tensors are the parameters' own and must follow every later step."""

    lane: ClassVar[str] = "state"
    takes_state: ClassVar[bool] = True
    looks: ClassVar[tuple[Look, ...]] = ("state_dict",)
    meanings: ClassVar[Mapping[str, str]] = {
        "op:take_state_dict": "a state dict that must follow later steps",
        "op:take_state_dict_before_forward": "a state dict taken before the first forward",
    }
    choices: ClassVar[tuple[Choice, ...]] = (Choice("take_state_dict", 13, 0, new=True),)

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield "op:take_state_dict"
        if not at.has_run:
            yield "op:take_state_dict_before_forward"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return "kept = model.state_dict()"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.states.take(trainer.engine)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        program.taken = True
        looked = program.watch.lines(index, ("state_dict",))
        return [f"taken = {program.scope.called}.state_dict()", *looked]

    @classmethod
    @override
    def draw_between(cls, steps: Boundaries) -> None:
        if "take_state_dict" in steps.swarm:
            steps.early(35).append(cls())

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        yield (cls(),)
