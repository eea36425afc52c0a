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
    signature: str
    same_signature: bool
    shared: int
    of: int


def duplicates(file: Path, entry: CorpusEntry, mine: Collection[str]) -> list[Duplicate]:
    """Entries beside the one in ``file`` that share most of its cause, or some of it and its signature."""
    found = []
    for other_file in entry_files([file.parent.parent]):
        if other_file.name != CASE_FILE or other_file.parent == file.parent:
            continue
        try:
            other = read_entry(other_file)
        except InvalidEntry:
            continue
        if not other.signature:
            continue
        theirs = saved_cause(other_file, other)
        shared, union = len(theirs & set(mine)), len(theirs | set(mine))
        same = other.signature == entry.signature
        if (same and (shared or not union)) or (union and shared / union >= LEAST_OVERLAP):
            duplicate = Duplicate(other_file.parent.name, other.signature, same, shared, union)
            found.append((shared / (union or 1), duplicate))
    ranked = sorted(found, key=lambda pair: (not pair[1].same_signature, -pair[0], pair[1].name))
    return [duplicate for _, duplicate in ranked[:MOST]]
