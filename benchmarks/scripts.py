"""The scripts of a corpus: how long they are, and whether they show what they are for.

python benchmarks/scripts.py corpus/findings            # lines of every saved repro.py
python benchmarks/scripts.py corpus/findings --check    # runs each one too, as torchrun would
python benchmarks/scripts.py corpus/findings --rewrite  # writes them anew, reduces and saves them
python benchmarks/scripts.py corpus/findings --sample 20  # 20 drawn at random of those that this
torch shows, before and after they are reduced; nothing is saved
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common import run_main
from msgspec.structs import replace

from fuzzshard import reproducer
from fuzzshard.campaign.known import saved_cause
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry, script_digest
from fuzzshard.corpus.expectation import Expected, expected
from fuzzshard.corpus.scripts import shown_by
from fuzzshard.corpus.store import (
    CASE_FILE,
    SCRIPT_FILE,
    entry_files,
    save_shrunk,
    saved_script,
)
from fuzzshard.drafts.draft import draft
from fuzzshard.drafts.evidence import Evidence
from fuzzshard.drafts.reduced import reduced_script
from fuzzshard.drafts.words import has_private_names
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, UsageError
from fuzzshard.reproducer.check import ranks_needed
from fuzzshard.reproducer.shown import Shown
from fuzzshard.temporary import TemporaryFolder

TYPICAL = 60
"""Lines that the script of a typical finding has at most."""


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
        has_private_names(text),
        "os._exit" in text,
        ranks_needed(text),
        result,
        round(seconds, 1),
    )


def run(text: str, entry: CorpusEntry) -> Shown:
    """Runs a script on fresh ranks."""
    with TemporaryFolder() as folder:
        script = folder / SCRIPT_FILE
        script.write_text(text)
        return shown_by(reproducer.check(script, ranks_needed(text)), entry)


def rewritten(entry: CorpusEntry) -> tuple[str | None, str]:
    """Returns the first new script that shows the finding, and what was said."""
    try:
        for text in reproducer.scripts(
            entry.case,
            signature=entry.signature,
            findings=entry.findings,
            torch_version=entry.torch,
        ):
            if run(text, entry) is Shown.YES:
                return text, str(Shown.YES)
    except UsageError as error:
        return None, str(error)
    return None, "no new script shows the finding"


def saved(file: Path, *, check: bool, rewrite: bool) -> Row:
    """Looks at the script of an entry; writes it anew, if it shows its finding then."""
    entry, text, result = read_entry(file), saved_script(file), "not run"
    if rewrite:
        new, result = rewritten(entry)
        if new is not None:
            text = reduced_script(entry, new)
            notes = {name: note for name, note in entry.notes.items() if name != SCRIPT_FILE}
            digest = script_digest(text) if text != new else ""
            save_shrunk(file.parent, replace(entry, notes=notes, reduced=digest), text)
    elif check and text is not None:
        result = str(run(text, entry))
    return row(file, text, result)


def both(file: Path, seconds: float, keep: Path | None) -> tuple[Row, Row]:
    """Writes the script of an entry anew, and reduces it."""
    entry = read_entry(file)
    began = time.monotonic()
    before, result = rewritten(entry)
    first = row(file, before, result, time.monotonic() - began)
    if before is None:
        return first, first
    began = time.monotonic()
    after = reduced_script(entry, before, seconds=seconds)
    took = time.monotonic() - began
    if keep is not None:
        keep.mkdir(exist_ok=True)
        (keep / f"{file.parent.name}.before.py").write_text(before)
        (keep / f"{file.parent.name}.after.py").write_text(after)
    return first, row(file, after, str(run(after, entry)), took)


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
    parser.add_argument("--sample", type=int, help="compare so many before and after")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--seconds", type=float, default=600, help="for reducing one script")
    parser.add_argument("--keep", type=Path, help="where to save the scripts of a sample")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    files = [f for f in entry_files(args.corpus) if f.name == CASE_FILE]
    files = [file for file in files if read_entry(file).signature]
    before, rows = list[Row](), list[Row]()
    for file in drawn(files, args.sample, args.seed) if args.sample else files:
        if args.sample:
            first, second = both(file, args.seconds, args.keep)
            before.append(first)
            rows.append(second)
            said = f"{first.lines:4} -> {second.lines:3}  {second.seconds:4.0f} s"
        else:
            rows.append(saved(file, check=args.check, rewrite=args.rewrite))
            said = f"{rows[-1].lines:4}"
        if not args.json:
            print(f"{said}  {rows[-1].result:25}  {rows[-1].name}", flush=True)
    of_all = {"before": sums(before), "after": sums(rows)} if args.sample else sums(rows)
    if args.json:
        print(json.dumps(of_all | {"rows": list(map(dataclasses.asdict, rows))}))
    else:
        print(of_all)
    judged = [r.result for r in rows if r.result != "not run"]
    return EXIT_FINDING if any(result != Shown.YES for result in judged) else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
