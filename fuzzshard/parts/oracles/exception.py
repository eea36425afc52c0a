"""An engine raises where nothing is documented to."""

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
    def aim(self, case: oracle.Case, finding: oracle.Finding, aim: oracle.Aim) -> oracle.Aim:
        if finding.detail == "desync":
            return aim.but(kind="desync")
        return aim.but(kind="raise", op=finding.op)
