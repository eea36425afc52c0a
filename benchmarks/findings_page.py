"""Write the causes of a corpus as tables into its README.md, below what people wrote there.

python benchmarks/findings_page.py corpus/findings
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzzshard.corpus.causes import Cause, by_cause, issue_link, weights_text
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.lifecycle import in_order

FINDINGS_PAGE = "README.md"
MARKER = "<!-- What follows is written by: "
"""Begins the part of a page that nobody writes by hand."""
PAGE = (
    MARKER
    + """python benchmarks/findings_page.py {corpus} -->

## {causes} causes of {entries} entries: {weights}

Each cause is a known bug of torch, described in a file of `fuzzshard/mends`: its docstring is the
diagnosis, and it has the smallest change of torch with which its entries pass (or, where Python
cannot fix it, code that notes when it occurs). The link leads to one of its entries. `fuzzshard
corpus verify {corpus} --causes` checks all of that by running the entries.

{rows}
## Entries by release of torch

How many entries of each cause show their finding under a release (bad), and how many do not
(good). The others (n/a) were not run under it, or cannot say: the release lacks what the case
uses, its documentation excludes the case, the case shows something else, or it needs CUDA.

{releases}"""
)


def main(corpus: Path) -> None:
    """Write the page anew."""
    file, rows = corpus / FINDINGS_PAGE, by_cause(load([corpus])[0])
    old = file.read_text() if file.exists() else ""
    write_atomic(file, findings_page(rows, corpus, old).encode())
    print(f"{file}: {len(rows)} causes")


def findings_page(causes: Sequence[Cause], corpus: object, old: str = "") -> str:
    """A page of Markdown on ``corpus``; what people wrote at the begin of the ``old`` one
    stays.
    """
    head, _, _ = old.partition(MARKER)
    entries = sum(len(cause.entries) for cause in causes)
    written = PAGE.format(
        corpus=corpus,
        causes=len(causes),
        entries=entries,
        weights=weights_text(cause.weight for cause in causes),
        rows=_markdown([COLUMNS, *map(_cells, causes)]),
        releases=_markdown(_release_rows(causes, _releases_of_most(causes))),
    )
    return (head or "# Findings\n\n") + written


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


COLUMNS = ("severity", "component", "weight", "cause", "torch", "entries", "in public", "mend")


def _cells(cause: Cause) -> tuple[str, ...]:
    links = [issue_link(public.link) for public in cause.public if public.is_same]
    looked_for = "none found" if cause.public else ""
    return (
        str(cause.severity),
        cause.component,
        cause.weight,
        f"[{_escaped(cause.title)}]({cause.example})",
        cause.torch,
        str(len(cause.entries)),
        ", ".join(dict.fromkeys(links)) or looked_for,
        f"`{cause.name}`" if cause.component else "",
    )


def _releases_of_most(causes: Sequence[Cause]) -> list[str]:
    """The releases under which more than half of the entries were looked at."""
    seen: Counter[str] = Counter()
    for cause in causes:
        seen.update({release: sum(counts) for release, counts in cause.releases.items()})
    entries = sum(len(cause.entries) for cause in causes)
    return [release for release in in_order(set(seen)) if 2 * seen[release] > entries]


def _release_rows(causes: Sequence[Cause], releases: Sequence[str]) -> list[list[str]]:
    rows = [["cause", "entries", *releases]]
    for cause in causes:
        counts = (cause.releases.get(release, (0, 0)) for release in releases)
        cells = (_of_release(bad, good, len(cause.entries)) for bad, good in counts)
        rows.append([_escaped(cause.title), str(len(cause.entries)), *cells])
    entries = sum(len(cause.entries) for cause in causes)
    sums = [
        [sum(cause.releases.get(release, (0, 0))[kind] for cause in causes) for kind in (0, 1)]
        for release in releases
    ]
    return [*rows, ["all", str(entries), *(_of_release(bad, good, entries) for bad, good in sums)]]


def _of_release(bad: int, good: int, entries: int) -> str:
    """``"3 bad, 1 good, 2 n/a"``, without what there is none of."""
    counts = (("bad", bad), ("good", good), ("n/a", entries - bad - good))
    return ", ".join(f"{count} {word}" for word, count in counts if count)


def _escaped(text: str) -> str:
    """In one line, without an end of the cell."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
