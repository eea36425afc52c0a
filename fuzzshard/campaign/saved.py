"""The findings that a corpus has already, as a campaign knows those that it has made itself."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Collection
from pathlib import Path

from fuzzshard.campaign.known import Known, Registry, cause_of
from fuzzshard.case.order import leaf_count
from fuzzshard.corpus.codec import entry_or_none
from fuzzshard.corpus.entry import Confirmation, CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected, seen_elsewhere
from fuzzshard.corpus.store import CASE_FILE, UNSHRUNK_FILE, entry_files


@functools.cache
def _torch() -> str:
    """The release that is installed."""
    return importlib.metadata.version("torch")


def load_known(
    *corpora: Path,
    preload: Collection[str] | None = None,
    unfinished: Collection[Path] = (),
    mends: Collection[str] = (),
) -> Registry:
    """The findings saved below ``corpora``, as a campaign knows those that it has made itself.

    Those that this torch does not have by what their entries say are none: one that shows is back,
    and news. Those whose cause is one of ``mends``, which tell of it better, are examples. With
    ``preload``, those of them that need no other preloaded files. Those in the folders
    ``unfinished``, which somebody is about to go on with, are left out until they are confirmed
    and shrunk. So are files that cannot be read: replaying says what is wrong with them.
    """
    registry = Registry()
    torch = _torch()
    for file in entry_files(corpus for corpus in corpora if corpus.exists()):
        entry = entry_or_none(file)
        if entry is None or expected(entry, torch, entry.device) is Expected.NOTHING:
            continue
        if entry.cause in mends:
            size = leaf_count(entry.case) + len(entry.case.schedule)
            registry.examples[entry.cause].append((size, file.parent))
            continue
        elsewhere = preload is not None and not set(entry.preload) <= set(preload)
        is_finished = entry.is_confirmed and not entry.unshrunk
        is_settled = is_finished or file.parent not in unfinished
        if entry.status.is_finding and not elsewhere and is_settled:
            registry.learn(known_of(file, entry))
    return registry


def known_of(file: Path, entry: CorpusEntry) -> Known:
    """The finding of ``entry``, which ``file`` holds, as one that nobody has met again so far."""
    return Known(
        entry.signature,
        file.parent,
        saved_cause(file, entry),
        hits=0,
        confirmed=entry.confirmed or Confirmation(),
        saved_before=True,
        internal=entry.internal,
        elsewhere=seen_elsewhere(entry, _torch()),
    )


def saved_cause(file: Path, entry: CorpusEntry) -> frozenset[str]:
    """The features that make the finding of ``entry``, read from ``file`` (:func:`cause_of`).

    Where the case that it was found as cannot be read, they are those of the smallest case.
    """
    found = entry_or_none(file.with_name(UNSHRUNK_FILE)) if file.name == CASE_FILE else None
    return cause_of(entry.case, entry.case if found is None else found.case)
