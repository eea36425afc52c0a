"""What ``matrix.py`` runs under each release of torch, how it reads the answers, and the table of
them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from fuzzshard.corpus.outcome import Outcome
from fuzzshard.errors import UsageError

REPOSITORY = Path(__file__).parents[1]
UPSTREAM = Path("corpus/upstream")


class Cell(msgspec.Struct):
    """What one step came to under one release.

    ``arguments`` are those it ran with. ``finding`` says that something is there that nothing
    explains, ``failed`` why there is no answer, or not all of it.
    """

    arguments: list[str]
    text: str = ""
    figures: dict[str, Any] = {}
    finding: bool = False
    failed: str = ""
    seconds: float = 0.0

    @property
    def said(self) -> str:
        """The text of the cell."""
        return "; ".join(filter(None, (self.text, self.failed)))


@dataclasses.dataclass(frozen=True)
class Step:
    """A column of the table: the arguments of Python that fill a cell, and how it is read off the
    output.
    """

    name: str
    arguments: list[str]
    read: Callable[[Sequence[Mapping[str, Any]], Cell], None]


def make_steps(args: Any, keep: Path) -> list[Step]:
    """The steps that ``args`` ask for, in the order of the columns. Raises :class:`UsageError`."""
    common = ["--device", args.device, "--world-size", str(args.world_size)]
    common += ["--seed", str(args.seed), "--json", "--shrink-seconds", str(args.shrink_seconds)]
    replay = ["-m", "fuzzshard", "replay", "--device", args.device, "--json"]
    steps = []
    if args.cases:
        alarms = ["benchmarks/false_alarms.py", "--cases", str(args.cases), *common]
        alarms += ["--on", args.on, "--jobs", str(args.jobs)]
        steps.append(
            Step("false alarms", [*alarms, "--keep", str(keep / "unexplained")], read_alarms)
        )
    if args.upstream:
        cells = sample_cells(REPOSITORY / UPSTREAM, args.upstream, args.seed)
        steps.append(Step("upstream", [*replay, "--known", *map(str, cells)], read_replay))
    if args.planted is not None:
        hunt = [
            "benchmarks/recall.py",
            "--planted",
            str(args.planted.resolve()),
            "--no-script",
            *common,
        ]
        only = ["--only", args.only] if args.only else []
        steps.append(
            Step("planted bugs", [*hunt, "--max-cases", str(args.max_cases), *only], read_recall)
        )
    if args.corpus:
        steps.append(Step("corpus", [*replay, *map(str, args.corpus)], read_replay))
    if not steps:
        raise UsageError(
            "there is nothing to run", "give --cases, --upstream, --planted or --corpus"
        )
    return steps


def sample_cells(root: Path, count: int, seed: int) -> list[Path]:
    """At most ``count`` of the cases below ``root``, as many of each folder in it as of the
    others.
    """
    rng = random.Random(seed)
    rows: dict[str, list[Path]] = {}
    for file in sorted(root.rglob("*.json")):
        rows.setdefault(file.relative_to(root).parts[0], []).append(file.relative_to(REPOSITORY))
    for files in rows.values():
        rng.shuffle(files)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*rows.values()))
    return sorted(itertools.islice(filter(None, turns), count))


def read_alarms(answers: Sequence[Mapping[str, Any]], cell: Cell) -> None:
    """Reads what ``false_alarms.py`` prints: one object."""
    (answer,) = answers
    unexplained = len(answer["unexplained"])
    cell.figures = {
        "cases": answer["cases"],
        "unexplained": unexplained,
        "explanations": answer["explanations"],
        "signatures": answer["signatures"],
    }
    cell.text = f"{unexplained} of {answer['cases']}"
    cell.finding = unexplained > 0


def read_recall(answers: Sequence[Mapping[str, Any]], cell: Cell) -> None:
    """Reads what ``recall.py`` prints: one object."""
    (answer,) = answers
    cell.figures = {name: answer[name] for name in ("found", "total", "not_applicable", "errors")}
    cell.figures["rows"] = {row["id"]: row["outcome"] for row in answer["rows"]}
    cell.text = f"{answer['found']} of {answer['total']} found"
    if answer["not_applicable"]:
        cell.text += f", {answer['not_applicable']} do not apply"


def read_replay(answers: Sequence[Mapping[str, Any]], cell: Cell) -> None:
    """Reads what ``replay --json`` prints: an object for each entry."""
    counts = Counter(answer["outcome"] for answer in answers)
    cell.figures = {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]}
    changed = {a["path"]: a["message"] for a in answers if a["outcome"] == Outcome.CHANGED}
    if changed:
        cell.figures["changed"] = changed
    cell.text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    cell.finding = bool(changed)


def matrix_table(steps: Sequence[str], rows: Mapping[str, Mapping[str, Cell]]) -> Table:
    """A row for each release, a column for each step."""
    table = Table(title="Releases of torch", title_justify="left")
    for heading in ("torch", *steps, "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    for version, cells in rows.items():
        seconds = sum(cell.seconds for cell in cells.values())
        texts = (cells[step].said if step in cells else "not run" for step in steps)
        table.add_row(version, *texts, f"{seconds:.0f}")
    return table


def read_answers(output: str) -> list[dict[str, Any]]:
    """The JSON objects in ``output``, one a line; a line that was cut off is none."""
    answers = []
    for line in output.splitlines():
        try:
            answers.append(json.loads(line))
        except ValueError:
            continue
    return answers
