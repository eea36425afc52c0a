"""How well signatures tell causes apart: planted bugs are causes that are known."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from hunt_rows import Row


def bugs_of_signatures(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The bugs that showed each signature."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for signature in row.signatures:
            bugs = found.setdefault(signature, [])
            bugs += [row.id] if row.id not in bugs else []
    return found


def signatures_of_bugs(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """The signatures that each bug showed, with their numbers of findings."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        mine = found.setdefault(row.id, {}) if row.signatures else {}
        for signature, count in row.signatures.items():
            mine[signature] = mine.get(signature, 0) + count
    return found


def signature_figures(rows: Sequence[Row]) -> dict[str, float]:
    """How many signatures a bug has, and how many bugs a signature; nothing where nothing was
    found.
    """
    bugs, signatures = signatures_of_bugs(rows), bugs_of_signatures(rows)
    if not bugs:
        return {}
    per_bug, per_signature = [len(s) for s in bugs.values()], [len(b) for b in signatures.values()]
    return {
        "findings": sum(sum(found.values()) for found in bugs.values()),
        "bugs": len(bugs),
        "signatures": len(signatures),
        "mean signatures of a bug": statistics.fmean(per_bug),
        "most signatures of a bug": max(per_bug),
        "mean bugs of a signature": statistics.fmean(per_signature),
        "most bugs of a signature": max(per_signature),
    }


def signature_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Which bugs have several signatures, and which signatures several bugs."""
    for bug, signatures in signatures_of_bugs(rows).items():
        if len(signatures) > 1:
            yield f"{bug}: " + ", ".join(f"{name} ({count})" for name, count in signatures.items())
    for signature, bugs in bugs_of_signatures(rows).items():
        if len(bugs) > 1:
            yield f"{signature}: {', '.join(bugs)}"
