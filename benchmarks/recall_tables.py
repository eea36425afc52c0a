"""The tables of recall.py: one hunt in detail, or several kinds of guidance side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from hunt_rows import INTERRUPTED, Row
from rich.table import Table

DIFFICULTIES = ("easy", "medium", "hard")
"""As the index of planted bugs has them; others come last."""


def row_line(row: Row) -> str:
    """One row as it finishes."""
    name = f"{row.id} ({row.guidance}, seed {row.seed})"
    if not row.found:
        extra = f" ({row.note})" if row.note else ""
        return f"{name}: {row.outcome} after {row.cases} cases, {row.seconds:.1f} s{extra}"
    script = {True: "script ok", False: "SCRIPT WRONG", None: "script not run"}[row.script_ok]
    return (
        f"{name}: found after {row.cases} cases, {row.seconds:.1f} s: {row.signature}; "
        f"{row.modules_before} -> {row.modules_after} modules in {shrunk_in(row)}, {script}"
        f"{'; ' + row.note.strip() if row.note else ''}"
    )


def shrunk_in(row: Row) -> str:
    """The time that shrinking took."""
    return ", ".join(f"{each.seconds:.0f} s" for each in row.shrinkings)


def make_table(rows: list[Row]) -> Table:
    """All rows of one kind of guidance and one seed."""
    table = Table(title="Recall of planted bugs")
    for name in ("bug", "difficulty", "outcome", "cases", "seconds", "signature"):
        table.add_column(name, justify="right" if name in ("cases", "seconds") else "left")
    for name in ("modules", "ops", "mesh", "script", "stock", "flaky"):
        table.add_column(name)
    for row in rows:
        sizes = ("", "", "")
        if row.found:
            sizes = (
                f"{row.modules_before} -> {row.modules_after}",
                f"{row.ops_before} -> {row.ops_after}",
                row.mesh_after
                if row.mesh_after == row.mesh_before
                else f"{row.mesh_before} -> {row.mesh_after}",
            )
        script = {True: "ok", False: "WRONG", None: ""}[row.script_ok]
        numbers = (str(row.cases), f"{row.seconds:.1f}")
        counts = (str(row.stock or ""), str(row.flaky or ""))
        table.add_row(
            row.id, row.difficulty, row.outcome, *numbers, row.signature, *sizes, script, *counts
        )
    return table


def cases_to_find(rows: Iterable[Row]) -> float:
    """The median number of cases to a finding; a bug that was missed was not found in any number
    of them.
    """
    counted = [row.cases if row.found else math.inf for row in rows if row.counts]
    return statistics.median(counted) if counted else math.nan


def seconds_to_find(rows: Iterable[Row]) -> float:
    """The median of the seconds to a confirmed finding."""
    counted = [row.seconds if row.found else math.inf for row in rows if row.counts]
    return statistics.median(counted) if counted else math.nan


def compare_bugs(rows: Sequence[Row], guidances: Sequence[str], repeats: int) -> Table:
    """A line for each bug: under each guidance the cases of every repeat, and how many repeats
    found it.
    """
    table = Table(title="Cases to find each bug; - where it was missed")
    table.add_column("bug")
    table.add_column("difficulty")
    for guidance in guidances:
        table.add_column(guidance, justify="right")
        table.add_column(f"of {repeats}", justify="right")
    for bug, difficulty in dict.fromkeys((row.id, row.difficulty) for row in rows):
        cells = []
        for guidance in guidances:
            mine = [row for row in rows if row.id == bug and row.guidance == guidance]
            if not any(row.counts for row in mine):
                cells += [", ".join(sorted({row.outcome for row in mine})), ""]
                continue
            mine.sort(key=lambda row: row.seed)
            cells += [" ".join(str(row.cases) if row.found else "-" for row in mine)]
            cells += [str(sum(row.found for row in mine))]
        table.add_row(bug, difficulty, *cells)
    return table


def compare_difficulties(rows: Sequence[Row], guidances: Sequence[str]) -> Table:
    """A line for each difficulty: under each guidance the medians of cases and seconds, and the
    share found.

    The median is over all hunts, a missed bug counting as more cases than any.
    """
    table = Table(title="Median to find a bug, by difficulty")
    table.add_column("difficulty")
    table.add_column("bugs", justify="right")
    for guidance in guidances:
        for what in ("cases", "seconds", "found"):
            table.add_column(f"{guidance}: {what}", justify="right")
    present = {row.difficulty for row in rows}
    order = [d for d in DIFFICULTIES if d in present] + sorted(present.difference(DIFFICULTIES))
    for difficulty in [*order, "all"]:
        chosen = [row for row in rows if row.counts and difficulty in (row.difficulty, "all")]
        cells = [difficulty, str(len({row.id for row in chosen}))]
        for guidance in guidances:
            mine = [row for row in chosen if row.guidance == guidance]
            found = f"{sum(row.found for row in mine)}/{len(mine)}"
            cells += [_number(cases_to_find(mine)), _number(seconds_to_find(mine)), found]
        table.add_row(*cells)
    return table


def finite(value: float) -> float | None:
    """``value`` as JSON can say it."""
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    return "more" if math.isinf(value) else "" if math.isnan(value) else f"{value:.0f}"


def rarely_found(rows: Sequence[Row], guidance: str, repeats: int) -> list[str]:
    """The bugs found in fewer than two thirds of their hunts, of which all were finished."""
    found: dict[str, int] = {}
    for row in rows:
        if row.guidance == guidance and (row.counts or row.outcome == INTERRUPTED):
            found[row.id] = found.get(row.id, 0) + row.found
    return [bug for bug, count in found.items() if 3 * count < 2 * repeats]
