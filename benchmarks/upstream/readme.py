"""The table of ``corpus/upstream/README.md``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from fuzzshard.corpus.outcome import Outcome
from upstream.catalog import ROWS
from upstream.cell import Row

RESULTS = ("results.jsonl", "results-cuda.jsonl")
"""What ``fuzzshard replay --json`` printed, by device; of several lines for one case the last
counts.
"""

HEAD = """\
# Upstream's tests as cases

{rows} test methods of PyTorch's `test/distributed`, as they were in mid-2024, that every version
of fuzzshard must cover: {cells} cells of their parameter grids, and {extra} variations. Each is a
case that must pass, made from the tables in `benchmarks/upstream`. This command writes the cases
and this page:

    PYTHONPATH=benchmarks python -m upstream corpus/upstream

The columns of results count what these commands printed last:

    fuzzshard replay corpus/upstream --device cpu --json > corpus/upstream/results.jsonl
    fuzzshard replay corpus/upstream --device cuda --json > corpus/upstream/results-cuda.jsonl

The first ran with torch 2.15.0 and gloo on CPU. The second ran with torch 2.11.0 and NCCL on four
H200s; cells of 8 ranks on two of them, with `--ranks-per-device 4`. An empty cell was not replayed
since it last changed. The cells that did not pass on CUDA (Z1, Z2, Z3 with `raf=2`) show a bug of
torch 2.11 that 2.13 does not have: resharding to a smaller mesh registers frozen parameters as
trainable.

In every row, the reference is the plain model with gradients averaged by hand. What upstream
compares with (DDP, composable `replicate`) is judged against it too. More is compared than
upstream does: outputs, losses, gradients, parameters, buffers and registration after every op,
unless a case says `observe="losses"`. Four ranks stand for upstream's GPUs. Values are not
upstream's; dims are.

| row | upstream test | cells | CPU: passed | skipped | other | CUDA: passed | skipped | other |
|---|---|---|---|---|---|---|---|---|
"""


def readme(corpus: Path) -> str:
    """The whole page, with the results that lie in ``corpus``."""
    folders = [_folders(corpus / name) for name in RESULTS]
    canonical = sum(len(row.canonical) for row in ROWS)
    extra = sum(len(row.cells) for row in ROWS) - canonical
    page = HEAD.format(
        rows=len(ROWS),
        cells=canonical,
        extra=extra,
    )
    page += "\n".join(line for row in ROWS for line in _lines(row, folders))
    return page + "\n\n## What differs, and why\n\n" + "\n".join(_differences()) + "\n"


@dataclasses.dataclass
class FolderSummary:
    """How many cases of one folder passed, could not be run here, and did anything else; and why.

    What torch refuses did not pass, nor did a finding that is not seen on this device.
    """

    passed: int = 0
    skipped: int = 0
    other: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return how many entries there are, how many passed, were skipped, and did neither."""
        return self.passed + self.skipped + self.other, self.passed, self.skipped, self.other

    def add(self, outcome: Outcome, message: str) -> None:
        """Counts one result, and the reason if it did not pass."""
        if outcome is Outcome.PASS and not message:
            self.passed += 1
        elif outcome is Outcome.SKIPPED:
            self.skipped += 1
            self.reasons[message] += 1
        else:
            self.other += 1
            self.reasons[message if outcome is Outcome.PASS else str(outcome)] += 1


def summarise(results: Iterable[tuple[Path, Outcome, str]]) -> dict[Path, FolderSummary]:
    """(path, outcome, message) by the folder that the path is in, in the order of the results."""
    folders: dict[Path, FolderSummary] = {}
    for path, outcome, message in results:
        folders.setdefault(path.parent, FolderSummary()).add(outcome, message)
    return folders


class _Result(msgspec.Struct, frozen=True):
    path: str
    outcome: Outcome
    message: str


def _folders(file: Path) -> dict[Path, FolderSummary]:
    results = _results(file)
    return summarise((path, result.outcome, result.message) for path, result in results.items())


def _results(file: Path) -> dict[Path, _Result]:
    """The last result of every case, by its path below the corpus."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    results = (msgspec.json.decode(line, type=_Result) for line in lines)
    return {_below(Path(result.path), file.parent.name): result for result in results}


def _below(path: Path, corpus: str) -> Path:
    """``path`` from the folder of the name ``corpus`` on, wherever the replay was started."""
    return Path(*path.parts[path.parts.index(corpus) + 1 :])


def _lines(row: Row, devices: list[dict[Path, FolderSummary]]) -> Iterator[str]:
    for folder in dict.fromkeys(cell.folder for cell in row.cells):
        cells = [cell for cell in row.cells if cell.folder == folder]
        columns = [
            _columns(folders.get(Path(row.id, folder), FolderSummary())) for folders in devices
        ]
        test = f"`{row.file}` {row.test}" if not folder else dict(row.folders)[folder]
        where = f"{row.id}/{folder}" if folder else f"**{row.id}**"
        yield f"| {where} | {test} | {len(cells)} | {' | '.join(columns)} |"


def _columns(summary: FolderSummary) -> str:
    if not any(summary.counts):
        return " |  | "
    _, passed, skipped, other = summary.counts
    reasons = f" ({'; '.join(summary.reasons)})" if summary.reasons else ""
    return f"{passed} | {skipped} | {other}{reasons}"


def _differences() -> Iterator[str]:
    for row in ROWS:
        for difference in row.differs:
            yield f"- **{row.id}**: {difference}."
