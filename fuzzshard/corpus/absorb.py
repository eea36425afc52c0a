"""What people and other runs wrote into an entry, taken over by the one that takes its place."""

from __future__ import annotations

from msgspec.structs import replace

from fuzzshard.case.case import ALL_ENGINES
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import with_versions
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import SCRIPT_FILE


def absorb(kept: CorpusEntry, other: CorpusEntry) -> CorpusEntry:
    """``kept`` with what people wrote into ``other``: issue, cause, notes, and ``wontfix`` or
    ``flaky``.

    Notes on engines and on the script are about the case and the script of ``other``, and stay
    there.
    """
    told = {
        name: note for name, note in other.notes.items() if name not in (*ALL_ENGINES, SCRIPT_FILE)
    }
    if kept.lifecycle is Lifecycle.OPEN and _is_said_by_people(other, kept):
        kept = replace(kept, lifecycle=other.lifecycle)
    return replace(
        kept,
        issue=kept.issue or other.issue,
        cause=kept.cause or other.cause,
        notes={**told, **kept.notes},
    )


def _is_said_by_people(other: CorpusEntry, kept: CorpusEntry) -> bool:
    """Whether no later run says otherwise: a measured rate counts until the next one is
    measured.
    """
    if other.lifecycle is Lifecycle.FLAKY:
        return not other.flaky or kept.confirmed is None
    return other.lifecycle is Lifecycle.WONTFIX


def absorb_versions(kept: CorpusEntry, other: CorpusEntry) -> CorpusEntry:
    """``kept`` with the releases of torch that ``other`` was seen on; ``kept`` is right in case of
    doubt.
    """
    bad = set(kept.bad_on) | (set(other.bad_on) - set(kept.good_on))
    return with_versions(kept, bad, set(kept.good_on) | (set(other.good_on) - bad))


def replaced(old: CorpusEntry, new: CorpusEntry) -> CorpusEntry:
    """``new``, saved in the place of ``old``: the same finding again, as found or with a smaller
    case.

    What ``old`` says of releases was seen on its own kind of device.
    """
    new = absorb(new, old)
    if (old.signature, old.device) != (new.signature, new.device) or not new.signature:
        return new
    return absorb_versions(new, old)
