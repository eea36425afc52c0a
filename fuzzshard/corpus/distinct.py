"""Which entries of corpora show the same, and which one of those is worth keeping."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec.structs import replace

from fuzzshard.analysis.features import features
from fuzzshard.analysis.order import size_order
from fuzzshard.case import codec
from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import is_there, with_versions
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import SCRIPT_FILE
from fuzzshard.verdict import Verdict

_T = TypeVar("_T", bound="_HasEntry")


FindingKey = tuple[str, bytes]


@dataclasses.dataclass(frozen=True)
class Stored:
    """An entry, the file that it was read from, and the folder or file in which that was looked
    for.
    """

    file: Path
    root: Path
    entry: CorpusEntry


@dataclasses.dataclass(frozen=True)
class Same:
    """Entries that show the same, the one to keep first.

    ``entry`` is that one, with what people wrote into the others.
    """

    items: tuple[Stored, ...]
    entry: CorpusEntry


def distinct(stored: Iterable[Stored]) -> list[Same]:
    """Return groups of entries that show the same, in the order of their first ones.

    They have the finding (:mod:`fuzzshard.identity`), the device and the set of features in
    common. A fixed finding and an open one are two bugs, whatever they have in common, unless the
    cases are equal. Of entries that are as good, the first one is kept.
    """
    equal = _grouped(stored, lambda item: (item.entry.device, codec.encode(item.entry.case)))
    same = [
        Same(tuple(items), _merge_all(items[0].entry, (i.entry for i in items[1:])))
        for items in equal
    ]
    return [_joined(group) for group in _grouped(same, lambda group: _kind(group.entry))]


class _HasEntry(Protocol):
    @property
    def entry(self) -> CorpusEntry: ...


def finding_key(signature: str, case: Case) -> FindingKey:
    """Return a key that findings share which differ in the seed of their tensors alone."""
    return signature, codec.encode(replace(case, seed=0))


def preference(entry: CorpusEntry) -> tuple[object, ...]:
    """Return a key that is smallest for the entry to keep: one that shows its finding in every
    run, then the smallest case.
    """
    return entry.flaky, entry.confirmed is None, size_order(entry.case)


def _grouped(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Items with one key and one finding, in the order of the first of each group."""
    groups: list[list[_T]] = []
    by_key: dict[Hashable, list[list[_T]]] = {}
    for item in items:
        alike = by_key.setdefault(key(item), [])
        group = next((g for g in alike if _show_the_same(g[0].entry, item.entry)), None)
        if group is None:
            groups.append(group := [])
            alike.append(group)
        group.append(item)
    return groups


def _show_the_same(one: CorpusEntry, other: CorpusEntry) -> bool:
    if one.signature == other.signature:
        return True
    seen = Verdict(status=other.status, findings=other.findings)
    return bool(other.torch) and is_there(one, seen, other.torch)


def _joined(groups: list[Same]) -> Same:
    first, *rest = sorted(groups, key=lambda group: preference(group.entry))
    items = tuple(item for group in (first, *rest) for item in group.items)
    return Same(items, _merge_all(first.entry, (group.entry for group in rest)))


def _kind(entry: CorpusEntry) -> Hashable:
    return entry.device, entry.lifecycle is Lifecycle.FIXED, features(entry.case)


def _merge_all(kept: CorpusEntry, others: Iterable[CorpusEntry]) -> CorpusEntry:
    """``kept`` with what people wrote into the others, and what is known of torch with the very
    same case.
    """
    for other in others:
        kept = merge_annotations(kept, other)
        if kept.signature and other.case == kept.case:
            kept = merge_releases(kept, other)
    return kept


def merge_annotations(kept: CorpusEntry, other: CorpusEntry) -> CorpusEntry:
    """Return ``kept`` with what people wrote into ``other``: issue, cause, notes, and ``wontfix``
    or ``flaky``.

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
    """Return whether no later run says otherwise: a measured rate counts until the next one is
    measured.
    """
    if other.lifecycle is Lifecycle.FLAKY:
        return not other.flaky or kept.confirmed is None
    return other.lifecycle is Lifecycle.WONTFIX


def merge_releases(kept: CorpusEntry, other: CorpusEntry) -> CorpusEntry:
    """Return ``kept`` with the releases of torch that ``other`` was seen on; ``kept`` is right in
    case of doubt.
    """
    bad = set(kept.bad_on) | (set(other.bad_on) - set(kept.good_on))
    return with_versions(kept, bad, set(kept.good_on) | (set(other.good_on) - bad))


def replaced(old: CorpusEntry, new: CorpusEntry) -> CorpusEntry:
    """Return ``new``, saved in the place of ``old``: the same finding again, as found or with a
    smaller case.

    What ``old`` says of releases was seen on its own kind of device.
    """
    new = merge_annotations(new, old)
    if (old.signature, old.device) != (new.signature, new.device) or not new.signature:
        return new
    return merge_releases(new, old)
