"""A rank dies."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Exit(oracle.LostRanks):
    """A process has ended, or its CUDA context is of no more use."""

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
