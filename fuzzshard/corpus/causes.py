"""What causes the findings of a corpus, and the table of them.

``causes.toml`` beside the entries is written by people who have read torch: lists of the folders of entries,
by what causes them. All else is in the entries. A cause that shows in more ways than entries can be made for
is a table, with the signatures that it may have as patterns of :mod:`fnmatch`::

    "a list group that never ends its forward" = { symptoms = ["*/fully_shard/*"], entries = ["..."] }
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from fuzzshard.corpus.distinct import Stored
from fuzzshard.corpus.entry import CONTRACT, LOOKED_UP, CorpusEntry
from fuzzshard.corpus.lifecycle import in_order
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import SCRIPT_FILE, saved_script
from fuzzshard.errors import UsageError

CAUSES_FILE = "causes.toml"

HEAD = """\
# Distinct findings on unmodified torch

{causes} causes of {entries} entries, written by

    fuzzshard corpus causes {corpus} > {corpus}/FINDINGS.md

A script counts as verified if it was run when the entry was saved and showed the finding;
`fuzzshard corpus verify {corpus} --run` runs them again. `README.md` says how each cause works and
what a user sees.

| cause | signatures | culprit | entries | scripts verified | state | contract that it breaks | public issue |
|---|---|---|---|---|---|---|---|
"""


RELEASES_HEAD = """\
# Findings by release of torch

{causes} causes of {entries} entries, written by

    fuzzshard corpus causes {corpus} --torch {releases} > {corpus}/RELEASES.md

How many entries of each cause show their finding under a release (bad), and how many do not (good). The
others (n/a) were not looked at under it, or say nothing of it: it lacks what the case uses, its documentation
excludes the case, the case shows something else there, or it needs CUDA.

"""


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``causes.toml`` says of a cause: the folders of its entries, and patterns of other signatures."""

    entries: tuple[str, ...]
    symptoms: tuple[str, ...] = ()


def read_causes(file: Path) -> dict[str, Named]:
    """The causes by their names; none where ``file`` is not there. Raises :class:`UsageError`."""
    if not file.exists():
        return {}
    try:
        causes = msgspec.convert(tomllib.loads(file.read_text()), dict[str, tuple[str, ...] | Named])
        return {n: cause if isinstance(cause, Named) else Named(cause) for n, cause in causes.items()}
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}", "mend it or remove it") from None


@dataclasses.dataclass(frozen=True)
class Cause:
    """Findings with one cause; ``verified`` of their scripts were run and showed the finding.

    ``releases`` says of each release of torch how many entries are bad and how many good on it.
    """

    cause: str
    entries: tuple[str, ...]
    signatures: tuple[str, ...]
    symptoms: tuple[str, ...]
    culprits: tuple[str, ...]
    verified: int
    state: tuple[str, ...]
    releases: dict[str, tuple[int, int]]
    contract: tuple[str, ...]
    issues: tuple[str, ...]
    looked_up: tuple[str, ...]


def by_cause(stored: Iterable[Stored]) -> list[Cause]:
    """Findings by the cause that ``causes.toml`` beside them names; one without a cause is by itself."""
    named: dict[str, list[Stored]] = {}
    known: dict[Path, dict[str, str]] = {}
    symptoms: dict[str, tuple[str, ...]] = {}
    for item in stored:
        if item.entry.signature:
            path = shown_path(item.file)
            corpus = path.parent
            if corpus not in known:
                causes = read_causes(corpus / CAUSES_FILE)
                known[corpus] = {entry: cause for cause, of in causes.items() for entry in of.entries}
                named |= {cause: [] for cause in causes if cause not in named}
                symptoms |= {cause: of.symptoms for cause, of in causes.items()}
            named.setdefault(known[corpus].get(path.name, f"not known: {path.name}"), []).append(item)
    return [_cause(cause, items, symptoms.get(cause, ())) for cause, items in named.items() if items]


def _cause(name: str, items: Sequence[Stored], symptoms: tuple[str, ...]) -> Cause:
    entries = [item.entry for item in items]
    return Cause(
        cause=name,
        entries=tuple(sorted(shown_path(item.file).name for item in items)),
        signatures=_distinct(entry.signature for entry in entries),
        symptoms=symptoms,
        culprits=_distinct(finding.engine for entry in entries for finding in entry.findings[:1]),
        verified=sum(SCRIPT_FILE not in i.entry.notes and saved_script(i.file) is not None for i in items),
        state=_distinct(str(entry.lifecycle) for entry in entries),
        releases=_releases(entries),
        contract=_distinct(entry.notes.get(CONTRACT, "") for entry in entries),
        issues=_distinct(entry.issue for entry in entries),
        looked_up=_distinct(entry.notes.get(LOOKED_UP, "") for entry in entries),
    )


def _releases(entries: Sequence[CorpusEntry]) -> dict[str, tuple[int, int]]:
    bad = Counter(release for entry in entries for release in entry.bad_on)
    good = Counter(release for entry in entries for release in entry.good_on)
    return {release: (bad[release], good[release]) for release in in_order(bad.keys() | good.keys())}


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


def causes_table(causes: Sequence[Cause], corpus: Path) -> str:
    """A page of Markdown on ``corpus`` with a row for each cause, in the order of ``causes.toml``."""
    entries = sum(len(cause.entries) for cause in causes)
    page = HEAD.format(causes=len(causes), entries=entries, corpus=corpus)
    return page + "".join(f"| {' | '.join(_cells(cause))} |\n" for cause in causes)


def releases_table(causes: Sequence[Cause], corpus: Path, releases: Sequence[str]) -> str:
    """A page of Markdown on ``corpus``: a row for each cause, a column for each of ``releases``, the sum."""
    entries = sum(len(cause.entries) for cause in causes)
    page = RELEASES_HEAD.format(
        causes=len(causes), entries=entries, corpus=corpus, releases=",".join(releases)
    )
    rows = [["cause", "entries", *releases], ["---"] * (2 + len(releases))]
    for cause in causes:
        counts = (cause.releases.get(release, (0, 0)) for release in releases)
        cells = (_of_release(bad, good, len(cause.entries)) for bad, good in counts)
        rows.append([_escaped(cause.cause), str(len(cause.entries)), *cells])
    sums = [
        [sum(cause.releases.get(release, (0, 0))[kind] for cause in causes) for kind in (0, 1)]
        for release in releases
    ]
    rows.append(["all", str(entries), *(_of_release(bad, good, entries) for bad, good in sums)])
    return page + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _of_release(bad: int, good: int, entries: int) -> str:
    """``"3 bad, 1 good, 2 n/a"``, without what there is none of."""
    counts = (("bad", bad), ("good", good), ("n/a", entries - bad - good))
    return ", ".join(f"{count} {word}" for word, count in counts if count)


def _cells(cause: Cause) -> Iterator[str]:
    yield _escaped(cause.cause)
    others = (f"any other `{pattern}`" for pattern in cause.symptoms)
    yield "<br>".join((*(f"`{signature}`" for signature in cause.signatures), *others))
    yield ", ".join(cause.culprits)
    yield str(len(cause.entries))
    yield f"{cause.verified} of {len(cause.entries)}"
    yield ", ".join(cause.state)
    yield "<br>".join(map(_escaped, cause.contract))
    yield "<br>".join(map(_escaped, (*map(_link, cause.issues), *cause.looked_up)))


def _link(address: str) -> str:
    """``[pytorch 183702](https://github.com/pytorch/pytorch/issues/183702)`` for an issue on GitHub."""
    parts = address.split("/")
    return f"[{parts[-3]} {parts[-1]}]({address})" if len(parts) > 3 else address


def _escaped(text: str) -> str:
    """In one line, without an end of the cell."""
    return " ".join(text.split()).replace("|", "\\|")
