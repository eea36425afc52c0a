"""A rank does not finish."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Deadline(oracle.LostRanks):
    """Ranks wait for each other until the deadline.

    The finding names the collective that each rank waits in, from torch's flight recorder, and
    has every rank's Python stack.

    It cannot tell an endless loop from slow work: ranks that use the processor get more time
    before they count as hung.
    """

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
