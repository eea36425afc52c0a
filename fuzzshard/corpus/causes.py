"""What causes the findings of a corpus, and tables of them: a row for each mend that an entry
names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fuzzshard.corpus.distinct import Stored
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import in_order
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import SCRIPT_FILE, saved_script
from fuzzshard.mending.mend import COMPONENTS, Mend, Public, own_mends

HEAD = """\
# Distinct findings on unmodified torch

{causes} root causes of {entries} entries, written by

    fuzzshard corpus causes {corpus} > {corpus}/FINDINGS.md

Each root is a file of `fuzzshard/mends`, whose docstring is the diagnosis: the smallest change of
torch that makes its entries pass, or a tripwire that says when it occurs. `fuzzshard corpus verify
{corpus} --causes` proves it for the torch at hand. A script counts as verified if it was run when
the entry was saved and showed the finding.

"""
COLUMNS = (
    "root",
    "component",
    "torch",
    "kind",
    "signatures",
    "entries",
    "scripts verified",
    "contract that it breaks",
    "in public",
)


RELEASES_HEAD = """\
# Findings by release of torch

{causes} root causes of {entries} entries, written by

    fuzzshard corpus causes {corpus} --torch {releases} > {corpus}/RELEASES.md

How many entries of each root show their finding under a release (bad), and how many do not (good).
The others (n/a) were not looked at under it, or say nothing of it: it lacks what the case uses,
its documentation excludes the case, the case shows something else there, or it needs CUDA.

"""


@dataclasses.dataclass(frozen=True)
class Cause:
    """Findings with one cause; ``verified`` of their scripts were run and showed the finding.

    ``name`` is that of a mend, or ``"not known: FOLDER"`` for an entry without one. ``releases``
    says of each release of torch how many entries are bad and how many good on it.
    """

    name: str
    title: str
    component: str
    kind: str
    torch: str
    entries: tuple[str, ...]
    signatures: tuple[str, ...]
    verified: int
    releases: dict[str, tuple[int, int]]
    contract: str
    public: tuple[Public, ...]


def by_cause(stored: Iterable[Stored]) -> list[Cause]:
    """Findings by the mend that their entries name, component by component; then those without
    one.
    """
    named: dict[str, list[Stored]] = {}
    for item in stored:
        if item.entry.signature:
            name = item.entry.cause if item.entry.cause in own_mends() else ""
            named.setdefault(name or f"not known: {shown_path(item.file).name}", []).append(item)
    causes = [_cause(name, items, own_mends().get(name)) for name, items in named.items()]
    order = [*COMPONENTS, ""]
    return sorted(
        causes, key=lambda cause: (order.index(cause.component), -len(cause.entries), cause.name)
    )


def _cause(name: str, items: Sequence[Stored], mend: Mend | None) -> Cause:
    entries = [item.entry for item in items]
    return Cause(
        name=name,
        title=mend.title if mend else name,
        component=mend.component if mend else "",
        kind=mend.kind if mend else "",
        torch=mend.torch.text() if mend else "",
        entries=tuple(sorted(shown_path(item.file).name for item in items)),
        signatures=tuple(sorted({entry.signature for entry in entries})),
        verified=sum(
            SCRIPT_FILE not in i.entry.notes and saved_script(i.file) is not None for i in items
        ),
        releases=_releases(entries),
        contract=mend.contract.text() if mend else "",
        public=mend.public if mend else (),
    )


def _releases(entries: Sequence[CorpusEntry]) -> dict[str, tuple[int, int]]:
    bad = Counter(release for entry in entries for release in entry.bad_on)
    good = Counter(release for entry in entries for release in entry.good_on)
    return {
        release: (bad[release], good[release]) for release in in_order(bad.keys() | good.keys())
    }


def causes_table(causes: Sequence[Cause], corpus: object) -> str:
    """A page of Markdown on ``corpus`` with a row for each cause."""
    entries = sum(len(cause.entries) for cause in causes)
    page = HEAD.format(causes=len(causes), entries=entries, corpus=corpus)
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(_cells, causes)]
    return page + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def releases_table(causes: Sequence[Cause], corpus: object, releases: Sequence[str]) -> str:
    """A page of Markdown on ``corpus``: a row for each cause, a column for each of ``releases``,
    the sum.
    """
    entries = sum(len(cause.entries) for cause in causes)
    page = RELEASES_HEAD.format(
        causes=len(causes), entries=entries, corpus=corpus, releases=",".join(releases)
    )
    rows = [["root", "entries", *releases], ["---"] * (2 + len(releases))]
    for cause in causes:
        counts = (cause.releases.get(release, (0, 0)) for release in releases)
        cells = (_of_release(bad, good, len(cause.entries)) for bad, good in counts)
        rows.append([_escaped(cause.title), str(len(cause.entries)), *cells])
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
    yield f"{_escaped(cause.title)} (`{cause.name}`)" if cause.component else _escaped(cause.title)
    yield cause.component
    yield cause.torch
    yield cause.kind
    yield "<br>".join(f"`{signature}`" for signature in cause.signatures)
    yield str(len(cause.entries))
    yield f"{cause.verified} of {len(cause.entries)}"
    yield _escaped(cause.contract)
    yield "<br>".join(_escaped(looked(public)) for public in cause.public)


def looked(public: Public) -> str:
    """One look in public: ``[pytorch 183702](https://github.com/pytorch/pytorch/issues/183702),
    open``.
    """
    where = _link(public.link) if public.link else "" if public.says else "none found"
    found = ", ".join(filter(None, (where, public.says)))
    return f"{found} ({public.date}: {public.query})" if public.query else found


def _link(address: str) -> str:
    """``[pytorch 183702](https://github.com/pytorch/pytorch/issues/183702)`` for an issue on
    GitHub.
    """
    parts = address.split("/")
    return f"[{parts[-3]} {parts[-1]}]({address})" if len(parts) > 3 else address


def _escaped(text: str) -> str:
    """In one line, without an end of the cell."""
    return " ".join(text.split()).replace("|", "\\|")
