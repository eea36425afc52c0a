"""The figures of shrink_figures.py: by finding, and against hand-written scripts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec
from hunt_rows import Row, Shrinking
from trigger_size import ScriptSize

SCRIPT = {True: "script ok", False: "SCRIPT WRONG", None: "script not run"}


class Comparison(msgspec.Struct, frozen=True):
    """A minimal case beside the script that a person wrote for the same bug."""

    id: str
    minimal: ScriptSize
    trigger: ScriptSize
    ratios: dict[str, float]

    def line(self) -> str:
        """Both sizes and their ratios."""
        sizes = (
            f"{name} {getattr(self.minimal, name)}/{getattr(self.trigger, name)}"
            for name in self.ratios
        )
        return f"{self.id}: {', '.join(sizes)}"


def compare(row: Row, trigger: ScriptSize) -> Comparison:
    """The minimal case of ``row`` beside ``trigger``; what the trigger has none of counts as
    one.
    """
    minimal = ScriptSize(row.modules_after or 0, row.forwards_after or 0, row.ranks_after or 0)
    names = ScriptSize.__struct_fields__
    ratios = {name: getattr(minimal, name) / max(getattr(trigger, name), 1) for name in names}
    return Comparison(row.id, minimal, trigger, ratios)


def row_line(row: Row) -> str:
    """One finding."""
    if not row.found:
        return (
            f"{row.id}: {row.outcome} after {row.cases} cases{'; ' + row.note if row.note else ''}"
        )
    return (
        f"{row.id}: after {row.cases} cases {row.signature}; {row.modules_before} -> "
        f"{row.modules_after} modules, {row.ops_before} -> {row.ops_after} ops, {row.mesh_before} "
        f"-> {row.mesh_after}; {'; '.join(map(_shrinking, row.shrinkings))}; {row.script_lines} "
        f"lines, {SCRIPT[row.script_ok]}{'; ' + row.note.strip() if row.note else ''}"
    )


def _shrinking(each: Shrinking) -> str:
    ended = "" if each.finished else ", not finished"
    return f"{each.evaluations} cases in {each.seconds:.1f} s{ended}"


def summary(
    rows: Sequence[Row], comparisons: Sequence[Comparison]
) -> dict[str, dict[str, float | None]]:
    """Medians, 90th percentiles and largest values."""
    found = [row for row in rows if row.found]
    shrunk = [each for row in found for each in row.shrinkings]
    sums: dict[str, dict[str, float | None]] = {
        "shrinking": {
            "reductions": len(shrunk),
            "finished": sum(each.finished for each in shrunk),
            "median cases": _median(each.evaluations for each in shrunk),
            "90% cases": _ninth_decile(each.evaluations for each in shrunk),
            "median seconds": _median(each.seconds for each in shrunk),
            "90% seconds": _ninth_decile(each.seconds for each in shrunk),
        }
    }
    for name in ScriptSize.__struct_fields__ if comparisons else ():
        ratios = [each.ratios[name] for each in comparisons]
        sums[f"{name} against the trigger"] = {"median": _median(ratios), "largest": max(ratios)}
    lines = [row.script_lines for row in found if row.script_ok]
    sums["scripts"] = {
        "ok": len(lines),
        "of": len(found),
        "median lines": _median(lines),
        "most lines": max(lines, default=None),
    }
    return sums


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _ninth_decile(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.quantiles(found, n=10, method="inclusive")[-1] if len(found) > 1 else None
