"""``module.path = 1``: which alternative a block calls."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op


class SetPath(op.Op, tag="set_path", frozen=True, kw_only=True):
    """From now on the calls with alternatives of the block ``target`` call alternative
    ``path``.
    """

    path: int
    target: str = ""
    ranks: op.Ranks = "all"

    sets_mode = True
    says = "{others}{at}.path = {op.path}"
    meanings = {
        "op:set_path": "another path from some point on",
        "op:set_path_on_some_ranks": "another path on all ranks but the first",
    }

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.paths[self.target] = self.path

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if not 0 <= self.path < at.alternatives.get(self.target, 0):
            yield (
                f"block {self.target!r} has no path {self.path}",
                "give one of its calls more alternatives",
            )
        yield from at.recomputed_misfits("a path")

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:set_path" if self.ranks == "all" else "op:set_path_on_some_ranks"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return scope.path_lines(self.target, self.path)

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment in ("step_begins", "aside") and run.paths and run.tape.chance(55):
            target = run.tape.pick([*run.paths])
            others = [k for k in range(run.paths[target]) if k != run.at.paths.get(target, 0)]
            run.add(cls(path=run.tape.pick(others), target=target))
