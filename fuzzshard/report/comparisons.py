"""How the engines that cases were drawn with were compared, as shares of their runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

ALL = "all"
"""Names the sum of all engines."""

_COLUMNS = {
    "bitwise": "bitwise",
    "exact": "bitwise",
    "bounded": "bounded",
    "precision": "half_precision",
    "not applicable": "not_run",
    "refused": "not_run",
}
"""What each kind of comparison counts as, and each reason why there was none; any other is
``not_compared``.
"""


class EngineRuns(NamedTuple):
    """Runs of one engine that were compared alike; or not at all, for a reason in its place."""

    engine: str
    comparison: str
    runs: int
    tensors: int
    skipped: int


class Comparisons(msgspec.Struct, frozen=True, kw_only=True):
    """How the ``runs`` of an engine were compared, as shares of them that add up to 1.

    ``half_precision``: something differed, by what half precision may round. ``not_compared``: it
    ran, and ranks were lost or only errors were expected. ``not_run``: torch refused the case, or
    a documentation excludes it. ``skipped`` is the share of all ``tensors`` that differ where
    no digits are left to judge.
    """

    runs: int
    bitwise: float
    bounded: float
    half_precision: float
    not_compared: float
    not_run: float
    tensors: int
    skipped: float


def comparisons(rows: Iterable[EngineRuns]) -> dict[str, Comparisons]:
    """Return the shares of each engine, and of all; empty where nothing is known."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for engine in (ALL, row.engine):
            counts[engine][_COLUMNS.get(row.comparison, "not_compared")] += row.runs
            counts[engine].update(runs=row.runs, tensors=row.tensors, skipped=row.skipped)
    return {engine: _shares(count) for engine, count in sorted(counts.items(), key=_order)}


def _order(item: tuple[str, Counter[str]]) -> tuple[bool, str]:
    return item[0] != ALL, item[0]


def _shares(count: Counter[str]) -> Comparisons:
    tensors = count["tensors"] + count["skipped"]
    return Comparisons(
        runs=count["runs"],
        tensors=tensors,
        skipped=count["skipped"] / max(tensors, 1),
        **{column: count[column] / count["runs"] for column in SHARES},
    )


SHARES = ("bitwise", "bounded", "half_precision", "not_compared", "not_run")
"""The columns of a table that are shares of runs."""

HEADS = ("engine", "runs", *(share.replace("_", " ") for share in SHARES), "skipped tensors")


def comparison_rows(compared: Mapping[str, Comparisons]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of a table under :data:`HEADS`."""
    for engine, of in compared.items():
        shares = (f"{getattr(of, share) * 100:.1f} %" for share in SHARES)
        yield engine, f"{of.runs:,}", *shares, f"{of.skipped * 100:.2g} %"


def comparison_lines(compared: Mapping[str, Comparisons]) -> Iterator[str]:
    """Yield the same as lines of text."""
    table = [HEADS, *comparison_rows(compared)] if compared else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *cells in table:
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((f"  {name:<{widths[0]}}", *padded))
