"""The findings that a corpus has already, as a campaign knows those that it has made itself."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Sequence
from pathlib import Path

from fuzzshard.campaign.known import Found, Known, Registry, Symptoms, cause_of
from fuzzshard.case.case import Case
from fuzzshard.corpus.causes import CAUSES_FILE, read_causes
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import Confirmation, CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected, seen_elsewhere
from fuzzshard.corpus.replay import Explain
from fuzzshard.corpus.store import CASE_FILE, UNSHRUNK_FILE, entry_files
from fuzzshard.errors import InvalidEntry, UsageError
from fuzzshard.verdict import Verdict


def load_known(*corpora: Path, preload: Collection[str] | None = None, unconfirmed: bool = True) -> Registry:
    """The findings saved below ``corpora``, as a campaign knows those that it has made itself.

    Those that this torch does not have by what their entries say are none: one that shows is back, and news.
    With ``preload``, those of them that need no other preloaded files. Files that cannot be read are left
    out: replaying says what is wrong with them.
    """
    registry = Registry()
    torch = importlib.metadata.version("torch")
    for file in entry_files(corpus for corpus in corpora if corpus.exists()):
        try:
            entry = read_entry(file)
        except InvalidEntry:
            continue
        if expected(entry, torch, entry.device) is Expected.NOTHING:
            continue
        elsewhere = preload is not None and not set(entry.preload) <= set(preload)
        if not entry.status.is_finding or elsewhere or (entry.confirmed is None and not unconfirmed):
            continue
        confirmed = entry.confirmed or Confirmation()
        registry.known.append(
            Known(
                entry.signature,
                file.parent,
                saved_cause(file, entry),
                hits=0,
                confirmed=confirmed,
                saved_before=True,
                internal=entry.internal,
                elsewhere=seen_elsewhere(entry, torch),
            )
        )
    for folder in {known.path.parent for known in registry.known}:
        share_causes(registry, folder / CAUSES_FILE)
    return registry


def known_from(corpora: Collection[Path], preload: Collection[str]) -> Explain:
    """Names the entry that explains a finding to a campaign with these ``corpora``, if one does.

    Raises :class:`UsageError` for a corpus that is not there.
    """
    for corpus in corpora:
        if not corpus.exists():
            raise UsageError(f"{corpus} does not exist", "give a corpus as known")
    registry = load_known(*corpora, preload=preload, unconfirmed=False)

    def explain(case: Case, verdict: Verdict) -> Path | None:
        known = registry.hit(Found(0, case, verdict))
        return known.path if known is not None else None

    return explain


def saved_cause(file: Path, entry: CorpusEntry) -> frozenset[str]:
    """The features that make the finding of ``entry``, read from ``file`` (:func:`cause_of`).

    Where the case that it was found as cannot be read, they are those of the smallest case.
    """
    unshrunk = file.with_name(UNSHRUNK_FILE)
    try:
        found = read_entry(unshrunk).case if file.name == CASE_FILE and unshrunk.exists() else entry.case
    except InvalidEntry:
        found = entry.case
    return cause_of(entry.case, found)


def share_causes(registry: Registry, file: Path) -> None:
    """Narrows the causes of entries beside ``file`` down that it says have one: to what all of them share.

    One cause has several smallest cases, such as one for every way in which a parameter gets no gradient.
    Symptoms go with what the entries of all signatures share. Raises :class:`UsageError` for entries that
    share nothing: that would explain everything.
    """
    for name, named in read_causes(file).items():
        beside = {file.with_name(entry) for entry in named.entries}
        together = [known for known in registry.known if known.path in beside]
        if together and named.symptoms:
            registry.symptoms.append(Symptoms(named.symptoms, _shared(together, name, file), together[0]))
        for signature in {known.signature for known in together}:
            alike = [known for known in together if known.signature == signature]
            shared = _shared(alike, name, file)
            for known in alike:
                known.cause = shared


def _shared(entries: Sequence[Known], name: str, file: Path) -> frozenset[str]:
    shared = frozenset.intersection(*(known.cause for known in entries))
    if not shared:
        raise UsageError(f"{file}: the entries of {name!r} share no feature", "split them")
    return shared
