"""Flags of the synchronisation and resharding of wrapped modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.op import Below, Choice, Flag, Op, Switch, expression

if TYPE_CHECKING:
    from fuzzshard.parts.op import Boundaries, Checked, Engine, Offered, Program, Run, ScheduleState, Trainer

SYNC_FLAGS: tuple[Flag, ...] = ("requires_gradient_sync", "requires_all_reduce")
"""Those that say what is reduced in a backward: what ``no_sync()`` is for engines that have no flags."""

_CHOICES: Mapping[str, Flag] = {
    "no_sync": "requires_gradient_sync",
    "partial_sync": "requires_gradient_sync",
    "no_all_reduce": "requires_all_reduce",
    "not_last_backward": "is_last_backward",
    "no_reshard": "reshard_after_backward",
}
"""The choices of swarms that every schedule may make, and their flags."""


class SetFlag(Op, tag="set_flag", frozen=True, kw_only=True):
    """``FSDPModule.set_<flag>(value)`` on the wrapped modules below ``target``, or on it alone.

    For DDP the first two at the root are ``no_sync()``; the others have no counterpart.
    """

    flag: Flag
    value: bool
    target: str = ""
    recurse: bool = True

    prepares: ClassVar[bool] = True
    keeps_parameters: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, str]] = {
        "op:set_reshard_after_forward": "set_reshard_after_forward during training"
    }
    choices: ClassVar[tuple[Choice, ...]] = (Choice("set_reshard", 12, 7),)

    @property
    @override
    def below(self) -> Below:
        return Below(self.target, self.recurse)

    @property
    @override
    def switch(self) -> Switch:
        return Switch(self.flag, self.value, self.below)

    @property
    @override
    def restored_by(self) -> Self:
        return replace(self, value=not self.value)

    @override
    def apply(self, state: ScheduleState) -> None:
        state.set_flag(self.switch)

    @override
    def check(self, at: Checked) -> None:
        at.check_wrapped()

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        if self.flag == "reshard_after_forward":
            yield "op:set_reshard_after_forward"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        return f"{expression(self.target)}.set_{self.flag}({self.value}{self.below.alone})"

    @override
    def noun(self, *, no_sync: bool = False) -> str:
        if no_sync:
            return f"the {'end' if self.value else 'begin'} of no_sync()"
        return f"set_{self.flag}({self.value}) of {self.target or 'the root'}"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        self.run_again(trainer.engine)

    @override
    def run_again(self, engine: Engine) -> None:
        engine.set_flag(self.switch)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        return self.lines_again(program)

    @override
    def lines_again(self, program: Program) -> list[str]:
        return program.flags.lines(self.switch)

    @classmethod
    def drawn(cls, run: Run) -> list[Self]:
        """What the rounds before the last one switch off; each flag of each module once."""
        chosen: dict[tuple[Flag, str], Self] = {}
        for choice, flag in _CHOICES.items():
            rare = choice == "no_all_reduce" and run.subject.case.mesh.replicate is None
            if choice in run.swarm and run.tape.chance(25 if rare else 60):
                partial = choice == "partial_sync" or (choice != "no_sync" and run.tape.chance(20))
                off = cls.off(run, flag, partial=partial)
                chosen.setdefault((flag, off.target), off)
        return list(chosen.values())

    @classmethod
    def off(cls, run: Run, flag: Flag, *, partial: bool) -> Self:
        """``flag`` is switched off; ``partial`` spares some groups."""
        if not partial or not run.wrapped:
            return cls(flag=flag, value=False)
        target = run.tape.pick([module for module in run.wrapped if module] or run.wrapped)
        return cls(flag=flag, value=False, target=target, recurse=run.tape.chance(30))

    @classmethod
    @override
    def draw_between(cls, steps: Boundaries) -> None:
        """Another ``reshard_after_forward`` from now on."""
        for _ in range(1 + steps.tape.chance(40)) if "set_reshard" in steps.swarm else ():
            place, below = steps.early(35), steps.below()
            op = cls(flag="reshard_after_forward", value=steps.tape.chance(50), target=below.target)
            place.append(replace(op, recurse=below.recurse))

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        value, below = offered.rng.random() < 0.5, offered.below
        op = cls(flag="reshard_after_forward", value=value, target=below.target, recurse=below.recurse)
        yield (op,)
