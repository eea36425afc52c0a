"""A rank does not finish."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Deadline(oracle.LostRanks):
    """Ranks wait for each other until the deadline."""

    name = "deadline"
    place = 20
    loses = "hung"
    harm = oracle.Severity.HANG
    aims = "desync"
    title = "ranks wait for each other for ever"
    sentence = "{who} hangs: {observed}."

    @override
    def signature(self, engine: str, detail: str) -> str:
        return f"desync/{engine}"
