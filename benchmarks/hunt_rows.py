"""What becomes of hunted bugs: one row for each, and their sums."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzzshard.analysis.order import leaf_count
from fuzzshard.campaign.reduce import Judged
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.parts.ops import Forward

FOUND, MISSED, ERROR, INTERRUPTED, NOT_APPLICABLE = (
    "found",
    "missed",
    "error",
    "interrupted",
    "does not apply",
)


class PlantedBug(msgspec.Struct, frozen=True):
    """One line of ``INDEX.json``; what else stands there is not for the fuzzer to know.

    No hunt looks at its ``symptom``.
    """

    id: str
    min_world: int = 1
    difficulty: str = ""
    symptom: str = ""


class Shrinking(msgspec.Struct, kw_only=True):
    """A reduction of a finding."""

    seconds: float
    evaluations: int
    finished: bool


class Row(msgspec.Struct, kw_only=True):
    """What became of one bug.

    ``outcome`` is ``found``, ``missed``, ``does not apply``, ``needs N ranks``, ``interrupted`` or
    ``error``. ``cases`` and ``seconds`` count until the finding was confirmed, or until the end.
    ``stock`` are findings of cases that do not pass without the bug either, ``flaky`` those that
    did not repeat every time. ``signatures`` counts the findings by signature, those after the
    first as they were judged. ``script_ok``: the reproducer fails with the bug and passes without
    it.
    """

    id: str
    difficulty: str
    outcome: str
    seed: int = 0
    found: bool = False
    cases: int = 0
    seconds: float = 0.0
    verdict: str = ""
    signature: str = ""
    signatures: dict[str, int] = {}
    modules_before: int | None = None
    modules_after: int | None = None
    ops_before: int | None = None
    ops_after: int | None = None
    mesh_before: str = ""
    mesh_after: str = ""
    forwards_after: int | None = None
    ranks_after: int | None = None
    shrinkings: list[Shrinking] = []
    script_lines: int = 0
    script_ok: bool | None = None
    stock: int = 0
    flaky: int = 0
    infra: int = 0
    note: str = ""

    @property
    def counts(self) -> bool:
        """Whether the bug could have been found here, and so counts in the total."""
        return self.outcome in (FOUND, MISSED, ERROR)


def mutants(planted: Path) -> Path:
    """The folder with a Python file for each bug in ``planted``."""
    return planted / "mutants" if (planted / "INDEX.json").exists() else planted


def read_index(planted: Path, only: frozenset[str] | None = None) -> list[PlantedBug]:
    """The bugs in ``planted``, or those of them named in ``only``; raises :class:`UsageError`.

    Without INDEX.json they are the Python files in ``planted``.
    """
    file = planted / "INDEX.json"
    try:
        if file.exists():
            bugs = msgspec.json.decode(file.read_bytes(), type=list[PlantedBug])
        else:
            bugs = [PlantedBug(each.stem) for each in sorted(planted.glob("*.py"))]
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"cannot read {file}: {error}", "mend that file") from None
    if not bugs:
        raise UsageError(
            f"{planted} has no planted bugs", "give a folder with INDEX.json or with Python files"
        )
    if unknown := (only or frozenset()) - {bug.id for bug in bugs}:
        raise UsageError(f"{planted} has no {', '.join(sorted(unknown))}", "check the ids")
    return [bug for bug in bugs if only is None or bug.id in only]


def describe_sizes(row: Row, found: Case, judged: Judged) -> None:
    """What was found, and how small it became."""
    small = judged.case
    row.outcome, row.found = FOUND, True
    row.signatures = {judged.verdict.signature: 1}
    row.verdict, row.signature = judged.verdict.status, judged.verdict.signature
    row.modules_before, row.modules_after = leaf_count(found), leaf_count(small)
    row.ops_before, row.ops_after = len(found.schedule), len(small.schedule)
    row.mesh_before, row.mesh_after = found.mesh.text(), small.mesh.text()
    row.forwards_after = sum(isinstance(op, Forward) for op in small.schedule)
    row.ranks_after = small.mesh.size


def totals(rows: list[Row]) -> dict[str, int]:
    """``total`` counts the bugs that could be found here; the others are counted by why not."""
    return {
        "found": sum(row.found for row in rows),
        "total": sum(row.counts for row in rows),
        "not_applicable": sum(row.outcome == NOT_APPLICABLE for row in rows),
        "needs_ranks": sum(row.outcome.startswith("needs") for row in rows),
        "interrupted": sum(row.outcome == INTERRUPTED for row in rows),
        "errors": sum(row.outcome == ERROR for row in rows),
        "scripts_ok": sum(row.script_ok is True for row in rows),
        "stock_findings": sum(row.stock for row in rows),
        "flaky": sum(row.flaky for row in rows),
    }
