"""What a case expects: errors and warnings of an engine."""

from __future__ import annotations

import json

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle

FORWARD_ORDER = "Forward order differs"
"""How FSDP1 begins to say that ranks, or iterations, run their units in different orders."""


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
    tells_apart = stops_at_op = True

    @override
    def severity(self, detail: str) -> oracle.Severity:
        """Another error than the announced one is one; none at all lets training go on."""
        return oracle.Severity.SILENT if detail == oracle.NOT_REFUSED else oracle.Severity.CRASH

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion:
        if finding.detail == oracle.NOT_REFUSED:
            if finding.op < 0:
                raise UsageError("no script expects an error of a constructor", "replay the case")
            return assertion.but(op=finding.op, pattern=finding.name)
        own = (e for e in case.expect if e.engine == finding.engine and e.kind == "error")
        error = next(own, None)
        if error is None:
            return assertion.but(rule=Warned())
        return assertion.but(op=error.op, pattern=error.pattern)

    @override
    def around(self, scope: oracle.Scope, lines: list[str]) -> list[str]:
        """Return the op must raise, on the ranks that the case names."""
        assertion, lines = scope.assertion, lines or ["pass"]
        body = [
            "try:",
            *(f"    {line}" for line in lines),
            "except Exception as error:",
            f"    assert re.search({assertion.pattern!r}, str(error)), error",
            "else:",
            f"    raise AssertionError({json.dumps(f'nothing raised {assertion.pattern}')})",
        ]
        due = [
            e for e in scope.case.expect if e.engine == assertion.engine and e.op == assertion.op
        ]
        if not any(e.kind == "error" and e.ranks == "others" for e in due):
            return body
        others = (f"    {line}" for line in body)
        first = (f"    {line}" for line in lines)
        return ["if dist.get_rank() > 0:", *others, "else:", *first]


class Warned(oracle.Demanded):
    """FSDP1 warns that iterations run in different orders, and they do not.

    It cannot see any other warning; these pass unless a case expects them.
    """

    name = "warning"
    place = 160
    of_values = False
    harm = oracle.Severity.WARNING

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        return [
            "caught = warnings.catch_warnings(record=True)",
            "log = caught.__enter__()",
            'warnings.simplefilter("always")',
        ]

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        """Return how often a warning must have been heard in the whole run."""
        due = [e for e in scope.case.expect if e.engine == scope.assertion.engine]
        due = [e for e in due if e.kind == "warning"]
        lines = ["heard = [str(warning.message) for warning in log]"]
        for pattern in dict.fromkeys(e.pattern for e in due) or {FORWARD_ORDER: None}:
            ranks = [e.ranks for e in due if e.pattern == pattern]
            times = f"{ranks.count('all')}"
            if "others" in ranks:
                times = f"({len(ranks)} if dist.get_rank() > 0 else {times})"
            lines.append(f"found = [text for text in heard if re.search({pattern!r}, text)]")
            lines.append(f'assert len(found) == {times}, f"rank {{rank}}: {{found}}"')
        return lines
