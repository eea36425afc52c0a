"""Saving model and optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.op import Choice, Look, Op, Via
from fuzzshard.parts.ops.corrupt_state import CorruptState
from fuzzshard.parts.ops.load_state import LoadState

if TYPE_CHECKING:
    from fuzzshard.parts.op import Boundaries, Checked, Names, Offered, Program, ScheduleState, Trainer


class SaveState(Op, tag="save_state", frozen=True, kw_only=True):
    """Saves model and optimizer: through ``torch.distributed.checkpoint``, or as copied state dicts."""

    via: Via = "dcp"

    lane: ClassVar[str] = "state"
    takes_state: ClassVar[bool] = True
    looks: ClassVar[tuple[Look, ...]] = ("trained", "optimizer")
    meanings: ClassVar[Mapping[str, str]] = {
        "op:save_dcp": "a checkpoint on disk",
        "op:save_state_dict": "copies of state dicts",
    }
    choices: ClassVar[tuple[Choice, ...]] = (Choice("save_load", 16, 1, needs=("several_steps",), new=True),)

    @property
    @override
    def saves(self) -> Via:
        return self.via

    @override
    def apply(self, state: ScheduleState) -> None:
        state.saved = self.via

    @override
    def check(self, at: Checked) -> None:
        if self.via == "dcp":
            at.check_one_copy()

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield f"op:save_{self.via}"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"save_state(via={self.via!r})"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.states.save(trainer, self.via)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        return [*program.states.save(self.via), *program.watch.lines(index, ("parameter", "resume"))]

    @classmethod
    @override
    def draw_between(cls, steps: Boundaries) -> None:
        """Saves, perhaps trains on, perhaps corrupts, loads; then trains on.

        A checkpoint on disk holds one copy of the buffers, and ranks with data of their own have their own.
        """
        if "save_load" not in steps.swarm:
            return
        tape, last = steps.tape, steps.num_steps - 1
        first = min(1 + tape.below(max(last, 1)), last) if tape.chance(80) else 0
        via: Via = "dcp" if tape.chance(60) and not steps.has_own_statistics else "state_dict"
        then = steps.ops[first + tape.below(last - first + 1)]
        steps.ops[first].append(cls(via=via))
        assign = tape.chance(25) and not steps.case.ties
        if tape.chance(75):
            then.append(CorruptState(how="rebuild" if tape.chance(50) else "zero"))
        then.append(LoadState(assign=assign))

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        for saved in (cls(via="state_dict"), cls()):
            yield (saved, CorruptState(how=offered.rng.choice(("zero", "rebuild"))), LoadState())

    @override
    def mended(self, names: Names) -> Op:
        names.saved = True
        return self
