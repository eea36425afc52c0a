"""``module.path = 1``: which alternative a block calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.op import Moment, Op, Ranks, expression

if TYPE_CHECKING:
    from fuzzshard.parts.op import Checked, Names, Offered, Program, Run, ScheduleState, Trainer


class SetPath(Op, tag="set_path", frozen=True, kw_only=True):
    """From now on the calls with alternatives of the block ``target`` call alternative ``path``."""

    path: int
    target: str = ""
    ranks: Ranks = "all"

    keeps_parameters: ClassVar[bool] = True
    chooses_path: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, str]] = {
        "op:set_path": "another path from some point on",
        "op:set_path_on_some_ranks": "another path on all ranks but the first",
    }

    @override
    def apply(self, state: ScheduleState) -> None:
        if self.runs_on(state.rank):
            state.paths[self.target] = self.path

    @override
    def check(self, at: Checked) -> None:
        if not 0 <= self.path < at.num_paths(self.target):
            raise InvalidCase(
                f"block {self.target!r} has no path {self.path}", "give one of its calls more alternatives"
            )
        at.check_recomputes("a path")

    @override
    def features(self, at: ScheduleState) -> Iterator[str]:
        yield "op:set_path_on_some_ranks" if self.on_some_ranks else "op:set_path"

    @override
    def statement(self, index: int, losses: Sequence[int]) -> str:
        others = "if rank > 0: " if self.on_some_ranks else ""
        return f"{others}{expression(self.target)}.path = {self.path}"

    @override
    def run(self, trainer: Trainer, index: int) -> None:
        if self.runs_on(trainer.rank):
            trainer.engine.set_path(self.target, self.path)

    @override
    def lines(self, program: Program, index: int) -> list[str]:
        return self.lines_again(program)

    @override
    def lines_again(self, program: Program) -> list[str]:
        return program.scope.on_ranks(self.ranks, program.scope.path_lines(self.target, self.path))

    @classmethod
    @override
    def draw(cls, run: Run, moment: Moment) -> None:
        """Not while flags wait for a backward that reaches every FSDP root: other paths may reach others."""
        if moment not in ("step_begins", "aside"):
            return
        bound = run.must_reach and not run.root_is_wrapped
        if run.paths and not bound and not run.pending and run.tape.chance(55):
            target = run.tape.pick([*run.paths])
            others = [k for k in range(run.paths[target]) if k != run.on_path.get(target, 0)]
            run.on_path[target] = run.tape.pick(others)
            run.ops.append(cls(path=run.on_path[target], target=target))

    @classmethod
    @override
    def additions(cls, offered: Offered) -> Iterator[tuple[Op, ...]]:
        """As often as four others: few cases have alternatives."""
        for _ in range(4) if offered.paths else ():
            block = offered.rng.choice(sorted(offered.paths))
            yield (cls(path=offered.rng.randrange(offered.paths[block]), target=block),)

    @override
    def mended(self, names: Names) -> Op | None:
        return self if self.path < names.paths.get(self.target, 0) else None
