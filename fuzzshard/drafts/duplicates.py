"""Other entries of a corpus that may have the same cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from fuzzshard.campaign.saved import saved_cause
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import CASE_FILE, entry_files
from fuzzshard.errors import InvalidEntry

LEAST_OVERLAP = 0.6
"""The part of two causes that they must share (Jaccard) where their signatures differ."""

MOST = 10


@dataclasses.dataclass(frozen=True)
class Duplicate:
    """An entry, and why it may be the same."""

    name: str
    why: str


def duplicates(file: Path, entry: CorpusEntry, mine: Collection[str]) -> list[Duplicate]:
    """Entries beside the one in ``file`` with its cause, most of its features, or some and its
    signature.
    """
    found: list[tuple[bool, bool, float, Duplicate]] = []
    for other_file in entry_files([file.parent.parent]):
        if other_file.name != CASE_FILE or other_file.parent == file.parent:
            continue
        try:
            other = read_entry(other_file)
        except InvalidEntry:
            continue
        if not other.signature:
            continue
        name, same_signature = other_file.parent.name, other.signature == entry.signature
        if entry.cause and other.cause:
            if entry.cause == other.cause:
                found.append((False, not same_signature, 0.0, Duplicate(name, "same cause")))
            continue
        theirs = saved_cause(other_file, other)
        shared, union = len(theirs & set(mine)), len(theirs | set(mine))
        if (same_signature and (shared or not union)) or (
            union and shared / union >= LEAST_OVERLAP
        ):
            kind = "same signature" if same_signature else other.signature
            duplicate = Duplicate(name, f"{kind}; {shared} of {union} features in common")
            found.append((True, not same_signature, -shared / (union or 1), duplicate))
    ranked = sorted(found, key=lambda each: (*each[:3], each[3].name))
    return [duplicate for *_, duplicate in ranked[:MOST]]
