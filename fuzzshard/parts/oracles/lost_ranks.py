"""Ranks that raise, die or hang."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Exceptions(oracle.LostRanks):
    """An engine raises an error that its documentation does not announce.

    An error that says that a peer is lost counts as a lost collective: its signature is
    ``desync/ENGINE``. What the rank recorded before it raised is judged first, so a wrong value
    that precedes a crash is the finding.

    It cannot see errors that the documentation announces at that op; these make a case REJECTED.
    """

    name = "exception"
    place = 0
    loses = "raised"
    sentence = "{who} raises `{brief}`."

    @override
    def signature(self, engine: str, detail: str) -> str:
        return oracle.lost(engine, detail) or f"crash/{engine}/{detail}"

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion:
        if finding.detail == "desync":
            return assertion.but(kind="desync")
        return assertion.but(kind="raise", op=finding.op)


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
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion:
        lost = oracle.lost(finding.engine, finding.detail)
        return assertion.but(kind="desync" if lost else "raise")


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
    asserts = "desync"
    title = "ranks wait for each other for ever"
    sentence = "{who} hangs: {observed}."

    @override
    def signature(self, engine: str, detail: str) -> str:
        return f"desync/{engine}"
