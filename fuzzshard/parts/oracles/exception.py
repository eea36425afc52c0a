"""An engine raises where nothing is documented to."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Exceptions(oracle.LostRanks):
    """A crash, or a lost collective that shows as an error."""

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
