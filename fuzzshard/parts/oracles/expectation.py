"""An error or a warning that is due and does not come, or comes otherwise."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle


class Expectation(oracle.Demanded):
    """What a case expects, and refusals that the documentation announces."""

    name = "expectation"
    place = 30
    loses = "raised otherwise"
    tells_apart = True

    @override
    def severity(self, detail: str) -> oracle.Severity:
        """Another error than the announced one is one; none at all lets training go on."""
        return oracle.Severity.SILENT if detail == oracle.NOT_REFUSED else oracle.Severity.CRASH

    @override
    def aim(self, case: oracle.Case, finding: oracle.Finding, aim: oracle.Aim) -> oracle.Aim:
        if finding.detail == oracle.NOT_REFUSED:
            if finding.op < 0:
                raise UsageError("no script expects an error of a constructor", "replay the case")
            return aim.but(kind="error", op=finding.op, expected=finding.name)
        expected = [e for e in case.expect if e.engine == finding.engine and e.kind == "error"]
        return aim.but(kind="error", op=expected[0].op) if expected else aim.but(kind="heard")
