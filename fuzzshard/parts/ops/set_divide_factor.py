"""``set_gradient_divide_factor()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.op import Below, Choice, Op, expression

if TYPE_CHECKING:
    from fuzzshard.parts.op import Boundaries, Checked, Engine, Offered, Program, ScheduleState, Trainer


class SetDivideFactor(Op, tag="set_divide_factor", frozen=True, kw_only=True):
    """``FSDPModule.set_gradient_divide_factor(factor)`` on the wrapped modules below ``target``, or on it.

    Gradients are then the sum over the data-parallel ranks divided by ``factor``, not by their number.
    """

    factor: float
    target: str = ""
    recurse: bool = True

    meanings: ClassVar[Mapping[str, str]] = {"op:divide_factor": "set_gradient_divide_factor"}
    choices: ClassVar[tuple[Choice, ...]] = (Choice("divide_factor", 10, 3, new=True),)

    @property
    @override
    def below(self) -> Below:
        return Below(self.target, self.recurse)

    @property
    @override
    def divisor(self) -> float:
        return self.factor

    @override
    def apply(self, state: ScheduleState) -> None:
        state.flags.set_divisor(self.factor, self.below)

    @override
    def check(self, at: Checked) -> None:
        if self.factor <= 0:
            raise InvalidCase("a divide factor is not positive", "use a positive number")
        at.check_wrapped()
        if at.was_reduced_partly:
            raise InvalidCase(
                "a divide factor changes while gradients are reduced over one axis of the mesh only",
                "part of a sum is divided already: move the op",
            )

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield "op:divide_factor"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"{expression(self.target)}.set_gradient_divide_factor({self.factor}{self.below.alone})"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        self.run_again(trainer.engine)

    @override
    def run_again(self, engine: Engine) -> None:
        engine.set_divide_factor(self.factor, self.below)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        return self.lines_again(program)

    @override
    def lines_again(self, program: Program) -> list[str]:
        """With sums in place of what gloo does not have (:func:`fuzzshard.case.sync_flags.multiplies`)."""

        def statements(module: str) -> list[str]:
            lines = [f"{module}.set_gradient_divide_factor({self.factor})"]
            if program.multiplies(self.factor):
                lines.append('if device == "cpu":  # gloo cannot multiply while it adds')
                lines.append(f"    {module}.set_force_sum_reduction_for_comms(True)")
            return lines

        return program.scope.each_wrapped(self.below, statements)

    @classmethod
    @override
    def draw_between(cls, steps: Boundaries) -> None:
        """Any factor, also one that the number of ranks is not a multiple of."""
        if "divide_factor" not in steps.swarm:
            return
        place, below, ranks = steps.early(50), steps.below(), float(steps.case.mesh.data_size)
        factor = steps.tape.pick((2.0 * ranks, 1.0, 2.0, 4.0, 3.0, ranks))
        place.append(cls(factor=factor, target=below.target, recurse=below.recurse))

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        factor, below = offered.rng.choice((1.0, 2.0, 3.0, 8.0)), offered.below
        yield (cls(factor=factor, target=below.target, recurse=below.recurse),)
