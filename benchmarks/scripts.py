"""The scripts of a corpus: how long they are, and whether they show what they are for.

python benchmarks/scripts.py corpus/findings            # lines of every saved repro.py
python benchmarks/scripts.py corpus/findings --check    # runs each one too, as torchrun would
python benchmarks/scripts.py corpus/findings --rewrite  # writes them anew, reduces and saves them
python benchmarks/scripts.py corpus/findings --rewrite --only stale --jobs 16 --done done.jsonl
# many at once; the same command goes on after a run that was killed
python benchmarks/scripts.py corpus/findings --sample 20  # 20 drawn at random of those that this
torch shows, before and after they are reduced; nothing is saved
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

from common import make_console, run_main
from jobs import in_processes
from msgspec.structs import replace

from fuzzshard import reproducer
from fuzzshard.campaign.control import Control
from fuzzshard.campaign.known import saved_cause
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry, script_digest
from fuzzshard.corpus.expectation import Expected, expected
from fuzzshard.corpus.scripts import scripts_of, shown_by
from fuzzshard.corpus.store import (
    CASE_FILE,
    SCRIPT_FILE,
    entry_files,
    save_shrunk,
    saved_script,
)
from fuzzshard.corpus.verify import Condition, verify
from fuzzshard.drafts.draft import draft
from fuzzshard.drafts.evidence import Evidence
from fuzzshard.drafts.reduced import reduced_script
from fuzzshard.drafts.words import private_names
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, UsageError
from fuzzshard.reproducer.check import ranks_needed
from fuzzshard.reproducer.shown import Shown
from fuzzshard.temporary import TemporaryFolder

TYPICAL = 60
"""Lines that the script of a typical finding has at most."""

OUT_OF_TIME = "out of time"


@dataclasses.dataclass(frozen=True)
class Row:
    """One script, with 0 lines if there is none, and what running it said."""

    name: str
    lines: int = 0
    draft: int = 0
    private: bool = False
    exits: bool = False
    processes: int = 0
    result: str = "not run"
    seconds: float = 0.0


def row(file: Path, text: str | None, result: str = "not run", seconds: float = 0.0) -> Row:
    """Looks at one script, and at the draft that has it."""
    name, entry = file.parent.name, read_entry(file)
    if text is None:
        return Row(name, result=result)
    return Row(
        name,
        len(text.splitlines()),
        len(draft(entry, text, Evidence(), saved_cause(file, entry)).splitlines()),
        bool(private_names(text)),
        "os._exit" in text,
        ranks_needed(text),
        result,
        round(seconds, 1),
    )


def run(text: str, entry: CorpusEntry, wanted: Callable[[], bool] = lambda: True) -> Shown:
    """Runs a script on fresh ranks."""
    with TemporaryFolder() as folder:
        script = folder / SCRIPT_FILE
        script.write_text(text)
        return shown_by(reproducer.check(script, ranks_needed(text), wanted=wanted), entry)


def rewritten(
    entry: CorpusEntry, wanted: Callable[[], bool] = lambda: True
) -> tuple[str | None, str]:
    """Returns the first new script that shows the finding, and what was said."""
    try:
        for text in scripts_of(entry, reproducer.scripts):
            said = run(text, entry, wanted)
            if not wanted():
                return None, OUT_OF_TIME
            if said is Shown.YES:
                return text, str(Shown.YES)
    except UsageError as error:
        return None, str(error)
    return None, "no new script shows the finding"


@dataclasses.dataclass(frozen=True)
class Task:
    """An entry whose script is written anew, in so many seconds."""

    file: Path
    seconds: float
    saves: bool
    keep: Path | None = None
    """Where to save the script before and after."""


def rewrite(task: Task, control: Control) -> tuple[Row, Row]:
    """Writes the script of an entry anew and reduces it, and saves that at once."""
    file, entry, began = task.file, read_entry(task.file), time.monotonic()
    torch, old = importlib.metadata.version("torch"), saved_script(task.file)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if entry.device == "cpu" else {}

    def left() -> float:
        return 0.0 if control.halted else task.seconds - (time.monotonic() - began)

    if expected(entry, torch, entry.device) is Expected.NOTHING:
        return row(file, None), row(file, old, f"not in torch {torch}")
    try:
        with mock.patch.dict(os.environ, hidden):
            before, result = rewritten(entry, lambda: left() > 0)
            if before is None:
                return row(file, None), row(file, old, result)
            first = row(file, before, result, time.monotonic() - began)
            after = reduced_script(
                entry, before, wanted=lambda: not control.halted, seconds=left()
            )
    except Exception as error:  # what is wrong with one entry costs itself
        return row(file, None), row(file, old, f"failed: {error!r}")
    if control.halted:
        return first, row(file, old, OUT_OF_TIME)
    if task.keep is not None:
        task.keep.mkdir(exist_ok=True)
        (task.keep / f"{file.parent.name}.before.py").write_text(before)
        (task.keep / f"{file.parent.name}.after.py").write_text(after)
    if task.saves:
        notes = {name: note for name, note in entry.notes.items() if name != SCRIPT_FILE}
        digest = script_digest(after) if after != before else ""
        save_shrunk(file.parent, replace(entry, notes=notes, reduced=digest), after)
    return first, row(file, after, result, time.monotonic() - began)


def saved(file: Path, *, check: bool) -> Row:
    """Looks at the script of an entry."""
    text = saved_script(file)
    if not check or text is None:
        return row(file, text)
    return row(file, text, str(run(text, read_entry(file))))


def drawn(files: Sequence[Path], number: int, seed: int) -> list[Path]:
    """Draws entries with a script, whose finding this torch shows on CPU ranks."""
    torch = importlib.metadata.version("torch")
    shown = [
        file
        for file in files
        if saved_script(file) and expected(read_entry(file), torch, "cpu") is Expected.FINDING
    ]
    return random.Random(seed).sample(shown, number)


def sums(rows: Sequence[Row]) -> dict[str, object]:
    """Counts them."""
    there = [row for row in rows if row.lines]
    lines = [row.lines for row in there] or [0]
    return {
        "entries": len(rows),
        "scripts": len(there),
        "median lines": statistics.median(lines),
        "median lines of drafts": statistics.median([row.draft for row in there] or [0]),
        "most lines": max(lines),
        f"of at most {TYPICAL} lines": sum(n <= TYPICAL for n in lines if n),
        "private names": sum(row.private for row in there),
        "os._exit": sum(row.exits for row in there),
        "of one process": sum(row.processes == 1 for row in there),
        "median seconds": statistics.median([row.seconds for row in there] or [0]),
        "results": dict(Counter(row.result for row in rows)),
    }


def selected(args: argparse.Namespace) -> list[Path]:
    """The entries that were asked for."""
    files = [f for f in entry_files(args.corpus) if f.name == CASE_FILE]
    files = [file for file in files if read_entry(file).signature]
    if args.only == "stale":
        stale = Condition.STALE
        files = [file for file in files if verify(file, reproducer.scripts).condition is stale]
    elif args.only == "unreduced":
        files = [file for file in files if not read_entry(file).reduced]
    if args.done and args.done.exists():
        done = {json.loads(line)["name"] for line in args.done.read_text().splitlines()}
        files = [file for file in files if file.parent.name not in done]
    return drawn(files, args.sample, args.seed) if args.sample else files


def main() -> int:
    """One line for each entry and the sums; 1 if a script was run and does not show its
    finding.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", type=Path, nargs="+", help="entries, or folders with entries")
    parser.add_argument("--check", action="store_true", help="run every script")
    parser.add_argument(
        "--rewrite", action="store_true", help="write every script anew, reduce it and run it"
    )
    parser.add_argument(
        "--only",
        choices=("stale", "unreduced"),
        help="entries whose script this version does not write, or which is not reduced",
    )
    parser.add_argument("--sample", type=int, help="compare so many before and after")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="entries written at the same time")
    parser.add_argument("--seconds", type=float, default=600, help="for one entry")
    parser.add_argument("--keep", type=Path, help="where to save scripts before and after")
    parser.add_argument(
        "--done", type=Path, help="file with a line of JSON for each entry that needs no more"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    console, writes = make_console(args), args.rewrite or args.sample
    files, pairs = selected(args), list[tuple[Row, Row]]()
    tasks = [Task(file, args.seconds, args.rewrite, args.keep) for file in files]
    looked_at: Iterator[tuple[Row, Row]] = (
        in_processes(rewrite, tasks, args.jobs, console)
        if writes
        else ((each, each) for each in (saved(file, check=args.check) for file in files))
    )
    with contextlib.suppress(KeyboardInterrupt):
        for first, second in looked_at:
            pairs.append((first, second))
            said = f"{first.lines:4} -> {second.lines:3}  {second.seconds:4.0f} s" * bool(writes)
            console.print(f"{said or f'{second.lines:4}'}  {second.result:25}  {second.name}")
            if args.done and second.result != OUT_OF_TIME:
                with args.done.open("a") as done:
                    done.write(json.dumps(dataclasses.asdict(second)) + "\n")
    rows = [second for _, second in pairs]
    of_all = {"before": sums([first for first, _ in pairs]), "after": sums(rows)}
    if args.json:
        print(json.dumps(of_all | {"rows": list(map(dataclasses.asdict, rows))}))
    else:
        for each in sorted(rows, key=lambda row: row.result):
            if each.result not in (Shown.YES, "not run"):
                console.print(f"{each.result}: {each.name}")
        print(of_all if writes else of_all["after"])
    judged = [r.result for r in rows if r.result != "not run"]
    return EXIT_FINDING if any(result != Shown.YES for result in judged) else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
