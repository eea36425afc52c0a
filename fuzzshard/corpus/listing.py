"""Entries as rows of a list: what they have, which ones are asked for, in which order, as text."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from fuzzshard.analysis.order import leaf_count
from fuzzshard.corpus.distinct import Stored
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.replay import shown_path
from fuzzshard.mending.mend import COMPONENTS, own_mends
from fuzzshard.parts.oracle import Severity


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. ``severity``, ``component``, ``cause`` and ``status`` are empty where there is no
    finding, or nobody knows.

    ``engines`` are those that the finding accuses, or that the case runs. ``rate`` says how many
    of the confirming runs showed the finding.
    """

    path: str
    severity: str
    component: str
    cause: str
    status: str
    signature: str
    engines: tuple[str, ...]
    modules: int
    ops: int
    mesh: str
    torch: str
    rate: str
    issue: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Patterns with ``*`` and ``?``, in any case: an entry is asked for if it has one of each.

    Parameters
    ----------
    cause
        Only entries whose cause has a name that matches.
    component
        Only entries whose cause is in this part of torch.
    severity
        Only entries of this severity.
    status
        Only entries that are open, fixed, wontfix, flaky or unshrunk.
    engine
        Only entries in which this engine is wrong.
    """

    cause: tuple[str, ...] = ()
    component: tuple[str, ...] = ()
    severity: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()

    def asks_for(self, row: Row) -> bool:
        """Tell whether ``row`` has what is asked for."""
        has: dict[str, tuple[str, ...]] = {
            "cause": (row.cause,),
            "component": (row.component,),
            "severity": (row.severity,),
            "status": tuple(row.status.split(", ")),
            "engine": row.engines,
        }
        return all(_any_matches(getattr(self, name), values) for name, values in has.items())


ANY = Asked()
"""Asks for every entry."""


def _any_matches(patterns: Sequence[str], values: Iterable[str]) -> bool:
    lowered = [value.lower() for value in values]
    return not patterns or any(
        fnmatchcase(value, pattern.lower()) for pattern in patterns for value in lowered
    )


def listed(stored: Iterable[Stored], asked: Asked) -> list[tuple[Row, Stored]]:
    """Return the entries that are ``asked`` for, by severity, component and cause."""
    rows = ((row_of(item), item) for item in stored)
    return sorted(
        (each for each in rows if asked.asks_for(each[0])), key=lambda each: _ranks(each[0])
    )


def row_of(item: Stored) -> Row:
    """Return the row of an entry."""
    entry, confirmed = item.entry, item.entry.confirmed
    accused = tuple(dict.fromkeys(finding.engine for finding in entry.findings))
    return Row(
        path=str(shown_path(item.file)),
        severity=entry.severity or "",
        component=component_of(entry),
        cause=entry.cause,
        status=f"{entry.lifecycle or ''}{', unshrunk' if entry.unshrunk else ''}",
        signature=entry.signature,
        engines=accused or entry.case.engines,
        modules=leaf_count(entry.case),
        ops=len(entry.case.schedule),
        mesh=entry.mesh,
        torch=entry.torch,
        rate=f"{confirmed.reproduced}/{confirmed.runs}" if confirmed else "",
        issue=entry.issue,
    )


def component_of(entry: CorpusEntry) -> str:
    """Return the component of torch that the cause of ``entry`` is in, empty without one."""
    mend = own_mends().get(entry.cause)
    return mend.component if mend is not None else ""


def _ranks(row: Row) -> tuple[object, ...]:
    named = (not row.cause, row.cause)
    return severity_rank(row.severity), component_rank(row.component), named, row.path


def severity_rank(severity: str) -> int:
    """Return a number, 0 for the worst; what has none comes last."""
    return _rank(list(Severity), severity)


def component_rank(component: str) -> int:
    """Return the place in the order of :data:`COMPONENTS`; what has none comes last."""
    return _rank(COMPONENTS, component)


def _rank(order: Sequence[str], value: str) -> int:
    return order.index(value) if value in order else len(order)


def entry_lines(rows: Sequence[Row], width: int) -> list[str]:
    """Return a table of ``width`` columns, and a line that says how many entries are where."""
    if not rows:
        return ["no entries"]
    above = os.path.commonpath([os.path.dirname(row.path) or "." for row in rows])
    cells = [
        {
            "severity": row.severity,
            "component": row.component,
            "status": row.status.rpartition(", ")[2],
            "cause": row.cause,
            "entry": os.path.relpath(row.path, above),
        }
        for row in rows
    ]
    count = f"{len(rows)} entr{'y' if len(rows) == 1 else 'ies'} in {above}"
    return [*table_lines(cells, width, cut=("cause", "entry")), count]


def table_lines(
    rows: Sequence[Mapping[str, str]], width: int, *, cut: Collection[str]
) -> list[str]:
    """Return rows with equal keys as columns, in ``width`` characters if that can be.

    Of the columns in ``cut``, the widest is shortened first. Names are cut in the middle: their
    ends tell them apart.
    """
    columns = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    while sum(columns.values()) + 2 * (len(columns) - 1) > width:
        widest = max(cut, key=columns.__getitem__)
        if columns[widest] <= _LEAST:
            break
        columns[widest] -= 1
    lines = [dict(zip(columns, columns, strict=True)), *rows]
    return [
        "  ".join(
            f"{_shortened(line[name], size):<{size}}" for name, size in columns.items()
        ).rstrip()
        for line in lines
    ]


_LEAST = 12
"""Characters of a column that is cut."""
_END = 8
"""Characters of its end that stay: the digest of an entry."""


def _shortened(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - _END - 1]}…{text[-_END:]}"
