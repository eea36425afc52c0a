"""A rank dies."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Exit(oracle.LostRanks):
    """A process has ended, or its CUDA context is of no more use."""

    name = "exit"
    place = 10
    loses = "died"

    @override
    def signature(self, engine: str, detail: str) -> str:
        return oracle.lost(engine, detail) or f"death/{engine}/{detail}"

    @override
    def headline(self, finding: oracle.Finding, *, hangs: bool) -> str:
        return f"ranks {'hang' if hangs else 'die'}: {' '.join(finding.observed.split())}"

    @override
    def sentence(self, who: str, observed: str) -> str:
        return f"{who} loses a rank: {observed}."

    @override
    def aim(self, case: oracle.Case, finding: oracle.Finding, aim: oracle.Aim) -> oracle.Aim:
        lost = oracle.lost(finding.engine, finding.detail)
        return aim.but(kind="desync" if lost else "raise")
