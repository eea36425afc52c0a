"""An iteration that an exception ends, and ``reset_iter_state()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.op import Call, Choice, Look, Moment, Op, expression

if TYPE_CHECKING:
    from fuzzshard.parts.op import Checked, Names, Program, Run, ScheduleState, Trainer


class Abort(Op, tag="abort", frozen=True, kw_only=True):
    """An iteration on batch ``batch`` that ends with an exception of ``target``, and the recovery.

    It is raised when the module is called, or in the backward of all outputs when the gradient of what the
    module has returned arrives. Then ``reset_iter_state()`` is called on the root, and ``zero_grad()``.
    """

    target: str
    batch: int = 0
    during: Literal["forward", "backward"] = "forward"

    aborts: ClassVar[bool] = True
    method: ClassVar[str] = "reset_iter_state"
    looks: ClassVar[tuple[Look, ...]] = ("registration", "buffers", "unreduced")
    meanings: ClassVar[Mapping[str, str]] = {
        "op:abort_forward": "a forward that ends with an exception, and reset_iter_state()",
        "op:abort_backward": "a backward that ends with an exception, and reset_iter_state()",
    }
    choices: ClassVar[tuple[Choice, ...]] = (
        # neither compile() nor checkpointing says that it can go on after an exception
        Choice("abort", 7, 100, excludes=("compile", "checkpoint"), new=True),
    )

    @property
    @override
    def begins(self) -> Call:
        return Call(batch=self.batch)

    @override
    def apply(self, state: ScheduleState) -> None:
        state.gather()

    @override
    def check(self, at: Checked) -> None:
        """``reset_iter_state`` is for the FSDP root, and what it resets for a whole iteration."""
        if not at.root_is_wrapped:
            raise InvalidCase("an iteration is aborted and the root is not wrapped", "wrap it")
        if at.pending:
            raise InvalidCase("an iteration is aborted while a forward is pending", "move the op")
        if at.case.checkpoints or at.case.compile is not None:
            raise InvalidCase(
                "an iteration is aborted under activation checkpointing or compile()",
                "neither says that it can go on after an exception: remove one of the two",
            )
        if self.target not in at.leaves_called:
            raise InvalidCase(f"{self.target!r} is no module that the forward calls to compute", "name one")

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield f"op:abort_{self.during}"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        raises = f"{expression(self.target)} raises in the {self.during} of batch {self.batch}"
        return f"{raises}; model.reset_iter_state()"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        trainer.abort(index, self.begins, self.target, in_backward=self.during == "backward")

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        in_backward = self.during == "backward"
        lines = program.forwards.aborted(index, self.begins, self.target, in_backward=in_backward)
        return [*lines, *(["local.clear()"] if program.sums else [])]

    @classmethod
    @override
    def draw(cls, run: Run, moment: Moment) -> None:
        """An iteration that an exception ends, between two that are whole."""
        case = run.subject.case
        if moment != "step_begins" or run.pending or case.checkpoints or case.compile:
            return
        if not run.root_is_wrapped or not run.allows("abort", 50):
            return
        run.batch += 1
        during: Literal["forward", "backward"] = "backward" if run.tape.chance(60) else "forward"
        run.ops.append(cls(target=run.tape.pick(run.leaves_called), batch=run.batch, during=during))
        run.started = True

    @override
    def mended(self, names: Names) -> Op | None:
        return self if self.target in names.modules else None
