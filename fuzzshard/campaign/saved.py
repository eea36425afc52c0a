"""The findings that a corpus has already, as a campaign knows those that it has made itself."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from pathlib import Path

import msgspec

from fuzzshard.campaign.known import Known, Registry, cause_of
from fuzzshard.case import codec
from fuzzshard.corpus.causes import CAUSES_FILE, read_causes
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.expectation import Expected, expected
from fuzzshard.corpus.store import UNSHRUNK_FILE, entry_files
from fuzzshard.errors import FuzzshardError, UsageError


def load_known(corpus: Path, *, preload: Collection[str] | None = None, unconfirmed: bool = True) -> Registry:
    """The findings saved below ``corpus``, as a campaign knows those that it has made itself.

    Those that this torch does not have by what their entries say are none: one that shows is back, and news.
    With ``preload``, those of them that need no other preloaded files. Files that cannot be read are left
    out: replaying says what is wrong with them.
    """
    registry = Registry()
    torch = importlib.metadata.version("torch")
    for file in entry_files([corpus]) if corpus.exists() else ():
        try:
            entry = read_entry(file)
            unshrunk = file.with_name(UNSHRUNK_FILE)
            found = codec.decode(unshrunk.read_bytes()) if unshrunk.exists() else entry.case
            cause = cause_of(entry.case, found)
        except (FuzzshardError, msgspec.MsgspecError):
            continue
        if expected(entry, torch, entry.device) is Expected.NOTHING:
            continue
        elsewhere = preload is not None and not set(entry.preload) <= set(preload)
        if not entry.status.is_finding or elsewhere or (entry.confirmed is None and not unconfirmed):
            continue
        confirmed = entry.confirmed or Confirmation()
        registry.known.append(
            Known(entry.signature, file.parent, cause, hits=0, confirmed=confirmed, saved_before=True)
        )
    share_causes(registry, corpus / CAUSES_FILE)
    return registry


def share_causes(registry: Registry, file: Path) -> None:
    """Narrows the causes of entries down that ``file`` says have one: to what all of them share.

    One cause has several smallest cases, such as one for every way in which a parameter gets no gradient.
    Raises :class:`UsageError` for entries that share nothing: that would explain everything.
    """
    for name, entries in read_causes(file).items():
        together = [known for known in registry.known if known.path.name in entries]
        for signature in {known.signature for known in together}:
            alike = [known for known in together if known.signature == signature]
            shared = frozenset.intersection(*(known.cause for known in alike))
            if not shared:
                raise UsageError(f"{file}: the entries of {name!r} share no feature", "split them")
            for known in alike:
                known.cause = shared
