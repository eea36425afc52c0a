"""A rank dies."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Exit(oracle.LostRanks):
    """A rank process ends in the middle of a case, or its CUDA context becomes unusable.

    It cannot tell torch from the machine by itself. Signals from outside, lack of memory and
    defective devices are excluded before (``fuzzshard/world/blame.py``).
    """

    name = "exit"
    place = 10
    loses = "died"
    title = "ranks {ends}: {observed}"
    sentence = "{who} loses a rank: {observed}."

    @override
    def signature(self, engine: str, detail: str) -> str:
        return oracle.lost(engine, detail) or f"death/{engine}/{detail}"

    @override
    def aim(self, case: oracle.Case, finding: oracle.Finding, aim: oracle.Aim) -> oracle.Aim:
        lost = oracle.lost(finding.engine, finding.detail)
        return aim.but(kind="desync" if lost else "raise")
