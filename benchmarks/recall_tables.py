"""The tables of recall.py: each hunt in detail, and what they took by difficulty."""

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
    name = f"{row.id} (seed {row.seed})"
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
    """All rows."""
    table = Table(title="Recall of planted bugs")
    for name in ("bug", "seed", "difficulty", "outcome", "cases", "seconds", "signature"):
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
            row.id,
            str(row.seed),
            row.difficulty,
            row.outcome,
            *numbers,
            row.signature,
            *sizes,
            script,
            *counts,
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


def difficulties_table(rows: Sequence[Row]) -> Table:
    """A line for each difficulty: the medians of cases and seconds, and the share found.

    The median is over all hunts, a missed bug counting as more cases than any.
    """
    table = Table(title="Median to find a bug, by difficulty")
    table.add_column("difficulty")
    for name in ("bugs", "cases", "seconds", "found"):
        table.add_column(name, justify="right")
    present = {row.difficulty for row in rows}
    order = [d for d in DIFFICULTIES if d in present] + sorted(present.difference(DIFFICULTIES))
    for difficulty in [*order, "all"]:
        chosen = [row for row in rows if row.counts and difficulty in (row.difficulty, "all")]
        bugs = str(len({row.id for row in chosen}))
        medians = _number(cases_to_find(chosen)), _number(seconds_to_find(chosen))
        found = f"{sum(row.found for row in chosen)}/{len(chosen)}"
        table.add_row(difficulty, bugs, *medians, found)
    return table


def finite(value: float) -> float | None:
    """``value`` as JSON can say it."""
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    return "more" if math.isinf(value) else "" if math.isnan(value) else f"{value:.0f}"


def rarely_found(rows: Sequence[Row], repeats: int) -> list[str]:
    """The bugs found in fewer than two thirds of their hunts, of which all were finished."""
    found: dict[str, int] = {}
    for row in rows:
        if row.counts or row.outcome == INTERRUPTED:
            found[row.id] = found.get(row.id, 0) + row.found
    return [bug for bug, count in found.items() if 3 * count < 2 * repeats]
