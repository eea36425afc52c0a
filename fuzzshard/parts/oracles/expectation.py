"""What a case expects: errors and warnings of an engine."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle


class Expectation(oracle.Demanded):
    """An error or a warning that is due does not come, or another one comes.

    It is due where the case says so (``Expect``), or where the documentation of an engine
    announces a refusal.

    It cannot see whether an error that is due leaves the model usable: the run of that engine
    ends there.
    """

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


class Warned(oracle.Demanded):
    """FSDP1 warns that iterations run in different orders, and they do not.

    It cannot see any other warning; these pass unless a case expects them.
    """

    name = "warning"
    place = 160
    of_values = False
    harm = oracle.Severity.WARNING
    aims = "heard"
