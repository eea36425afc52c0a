"""The table of ``corpus/upstream/README.md``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from fuzzshard.corpus.replay import Outcome
from fuzzshard.corpus.summary import FolderSummary, summarise
from fuzzshard.upstream.catalog import ROWS
from fuzzshard.upstream.cell import Row

RESULTS = "results.jsonl"
"""What ``fuzzshard replay --json`` printed; of several lines for one case the last counts."""

HEAD = """\
# Upstream's tests as cases

The {rows} test methods of PyTorch's `test/distributed` that every version of fuzzshard must subsume, in their
form of mid-2024: {cells} cells of their grids, and {extra} that vary them. Each is a bare case, made from the
tables in `fuzzshard/upstream`. This page and the cases are written by

    python -m fuzzshard.upstream corpus/upstream

and the columns of results are counts of `results.jsonl`, which is what this printed{torch}:

    fuzzshard replay corpus/upstream --device cpu --json > corpus/upstream/results.jsonl

`fuzzshard replay corpus/upstream --summary` prints the same table for the machine at hand.

In every row the reference is the plain model with gradients averaged by hand. What upstream compares with
(DDP, composable `replicate`) is judged against it too. More is compared than upstream does: outputs, losses,
gradients, parameters, buffers and registration after every op, unless a case says `observe="losses"`. Four
ranks stand for upstream's GPUs. Values are drawn by name, so they are not upstream's, but dims are.

| row | upstream test | cells | passed | skipped | other |
|---|---|---|---|---|---|
"""


def readme(corpus: Path) -> str:
    """The whole page, with the results that lie in ``corpus``."""
    results = _results(corpus / RESULTS)
    folders = summarise((path, result.outcome, result.message) for path, result in results.items())
    versions = sorted({result.torch for result in results.values()} - {""})
    canonical = sum(len(row.canonical) for row in ROWS)
    extra = sum(len(row.cells) for row in ROWS) - canonical
    page = HEAD.format(
        rows=len(ROWS),
        cells=canonical,
        extra=extra,
        torch=f" with torch {', '.join(versions)}" if versions else "",
    )
    page += "\n".join(line for row in ROWS for line in _lines(row, folders))
    return page + "\n\n## What differs, and why\n\n" + "\n".join(_differences()) + "\n"


class _Result(msgspec.Struct, frozen=True):
    path: str
    outcome: Outcome
    message: str
    torch: str = ""


def _results(file: Path) -> dict[Path, _Result]:
    """The last result of every case, by its path below the corpus."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    results = (msgspec.json.decode(line, type=_Result) for line in lines)
    return {_below(Path(result.path), file.parent.name): result for result in results}


def _below(path: Path, corpus: str) -> Path:
    """``path`` from the folder of the name ``corpus`` on, wherever the replay was started."""
    return Path(*path.parts[path.parts.index(corpus) + 1 :])


def _lines(row: Row, folders: dict[Path, FolderSummary]) -> Iterator[str]:
    for folder in dict.fromkeys(cell.folder for cell in row.cells):
        cells = [cell for cell in row.cells if cell.folder == folder]
        summary = folders.get(Path(row.id, folder), FolderSummary())
        _, passed, skipped, other = summary.counts if any(summary.counts) else ("", "", "", "")
        reasons = f" ({'; '.join(summary.reasons)})" if summary.reasons else ""
        test = f"`{row.file}` {row.test}" if not folder else dict(row.folders)[folder]
        where = f"{row.id}/{folder}" if folder else f"**{row.id}**"
        yield f"| {where} | {test} | {len(cells)} | {passed} | {skipped} | {other}{reasons} |"


def _differences() -> Iterator[str]:
    for row in ROWS:
        for difference in row.differs:
            yield f"- **{row.id}**: {difference}."
