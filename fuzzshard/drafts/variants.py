"""Other entries of a corpus that have the same cause, or may have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path

from fuzzshard.campaign.saved import saved_cause
from fuzzshard.corpus.codec import entry_or_none
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.listing import severity_rank
from fuzzshard.corpus.store import CASE_FILE, entry_files, saved_script
from fuzzshard.drafts.words import brief

LEAST_OVERLAP = 0.6
"""The part of two causes that they must share (Jaccard) where their signatures differ."""

MOST_VARIANTS = 3
MOST_DUPLICATES = 10


@dataclasses.dataclass(frozen=True)
class Variant:
    """Another program with the cause of a draft: where its entry is, its script, what it shows."""

    name: str
    entry: CorpusEntry
    script: str

    @property
    def brief(self) -> str:
        """How it shows the cause, in a line."""
        return brief(self.entry)


@dataclasses.dataclass(frozen=True)
class Duplicate:
    """An entry, and why it may have the same cause."""

    name: str
    why: str


def variants(file: Path, entry: CorpusEntry) -> list[Variant]:
    """Entries beside the one in ``file`` that name its cause and have a script, the worst first.

    Those that the newest torch does not show are left out of the draft of one that it shows.
    """
    if not entry.cause:
        return []
    found = [
        Variant(other_file.parent.name, other, script)
        for other_file, other in _beside(file)
        if other.cause == entry.cause and (script := saved_script(other_file)) is not None
        if entry.lifecycle is Lifecycle.FIXED or other.lifecycle is not Lifecycle.FIXED
    ]
    found.sort(key=lambda each: (severity_rank(each.entry.severity or ""), each.name))
    return found[:MOST_VARIANTS]


def duplicates(file: Path, entry: CorpusEntry, mine: Collection[str]) -> list[Duplicate]:
    """Entries beside the one in ``file`` that share most of its features, or some and its
    signature, where one of the two names no cause.
    """
    found: list[tuple[bool, float, Duplicate]] = []
    for other_file, other in _beside(file):
        if entry.cause and other.cause:
            continue
        same_signature = other.signature == entry.signature
        theirs = saved_cause(other_file, other)
        shared, union = len(theirs & set(mine)), len(theirs | set(mine))
        if (same_signature and (shared or not union)) or (
            union and shared / union >= LEAST_OVERLAP
        ):
            kind = "same signature" if same_signature else other.signature
            duplicate = Duplicate(
                other_file.parent.name, f"{kind}; {shared} of {union} features in common"
            )
            found.append((not same_signature, -shared / (union or 1), duplicate))
    ranked = sorted(found, key=lambda each: (*each[:2], each[2].name))
    return [duplicate for *_, duplicate in ranked[:MOST_DUPLICATES]]


def _beside(file: Path) -> Iterator[tuple[Path, CorpusEntry]]:
    """The other findings of the folder that holds the entry of ``file``."""
    for other_file in entry_files([file.parent.parent]):
        if other_file.name != CASE_FILE or other_file.parent == file.parent:
            continue
        if (other := entry_or_none(other_file)) is not None and other.findings:
            yield other_file, other
