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

    recomputed = "a path"
    says = "{others}{at}.path = {op.path}"
    meanings = {
        "op:set_path": "another path from some point on",
        "op:set_path_on_some_ranks": "another path on all ranks but the first",
    }

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
