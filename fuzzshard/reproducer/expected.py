"""What must happen in an op, or in a whole run: errors and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzzshard.case.case import Case
from fuzzshard.case.options import Expect
from fuzzshard.model.statements import indented, literal
from fuzzshard.parts.op import names_rank
from fuzzshard.reproducer.aim import Aim

if TYPE_CHECKING:
    from fuzzshard.reproducer.scope import Scope

FORWARD_ORDER = "Forward order differs"
"""How FSDP1 begins to say that ranks, or iterations, run their units in different orders."""

RECORD_WARNINGS = [
    "caught = warnings.catch_warnings(record=True)",
    "log = caught.__enter__()",
    'warnings.simplefilter("always")',
]
"""Statements before the model is wrapped."""


def expecting(case: Case, aim: Aim, lines: list[str]) -> list[str]:
    """The statements of the op that is looked at, and what they must do."""
    if aim.kind != "error":
        return aim.rule.around(aim, lines)
    due = Expect(kind="error", engine=aim.engine, pattern=aim.expected, op=aim.op or 0)
    own = (e for e in case.expect if e.engine == aim.engine and e.op == aim.op)
    return _error(next(own, due), lines)


def _error(expect: Expect, lines: list[str]) -> list[str]:
    body = [
        "try:",
        *indented(lines or ["pass"]),
        "except Exception as error:",
        f"    assert re.search({expect.pattern!r}, str(error)), error",
        "else:",
        f"    raise AssertionError({literal(f'nothing raised {expect.pattern}')})",
    ]
    if expect.ranks == "all":
        return body
    return ["if dist.get_rank() > 0:", *indented(body), "else:", *indented(lines or ["pass"])]


def warning_lines(scope: Scope) -> list[str]:
    """How often a warning must have been heard in the whole run."""
    expected = [e for e in scope.expectations if e.kind == "warning"]
    lines = ["heard = [str(warning.message) for warning in log]"]
    for pattern in dict.fromkeys(e.pattern for e in expected) or {FORWARD_ORDER: None}:
        everyone, others = (
            sum(names_rank(e.ranks, rank) for e in expected if e.pattern == pattern)
            for rank in (0, 1)
        )
        due = (
            str(everyone)
            if everyone == others
            else f"({others} if dist.get_rank() > 0 else {everyone})"
        )
        lines.append(f"found = [text for text in heard if re.search({pattern!r}, text)]")
        lines.append(f'assert len(found) == {due}, f"rank {{rank}}: {{found}}"')
    return lines
