"""A rank does not finish."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Deadline(oracle.LostRanks):
    """Ranks wait for each other until the deadline."""

    name = "deadline"
    place = 20
    loses = "hung"

    @override
    def signature(self, engine: str, detail: str) -> str:
        return f"desync/{engine}"

    @override
    def headline(self, finding: oracle.Finding, *, hangs: bool) -> str:
        return "ranks wait for each other for ever"

    @override
    def sentence(self, who: str, observed: str) -> str:
        return f"{who} hangs: {observed}."

    @override
    def aim(self, case: oracle.Case, finding: oracle.Finding, aim: oracle.Aim) -> oracle.Aim:
        return aim.but(kind="desync")
