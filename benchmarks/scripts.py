"""The scripts of a corpus: how long they are, and whether they show what they are for.

python benchmarks/scripts.py corpus/findings            # lines of every saved repro.py, median and
most python benchmarks/scripts.py corpus/findings --check    # runs each one too, as torchrun would
python benchmarks/scripts.py corpus/findings --rewrite  # writes them anew, keeps what shows its
finding
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections import Counter
from pathlib import Path

from common import run_main

from fuzzshard import reproducer
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.store import CASE_FILE, SCRIPT_FILE, entry_files, saved_script
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, UsageError
from fuzzshard.reproducer.shown import Shown, shown

TYPICAL = 60
"""Lines that the script of a typical finding has at most."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One entry: lines of its script, 0 if it has none, and what running it said."""

    name: str
    lines: int
    result: str


def row(file: Path, *, check: bool, rewrite: bool) -> Row:
    """Looks at one entry."""
    entry, text, result = read_entry(file), saved_script(file), "not run"
    if rewrite:
        text, result = rewritten(file, entry)
    elif check and text is not None:
        result = str(run(file.with_name(SCRIPT_FILE), entry))
    return Row(file.parent.name, len((text or "").splitlines()), result)


def run(script: Path, entry: CorpusEntry) -> Shown:
    """Runs a script on fresh ranks."""
    result = reproducer.check(script, entry.case.mesh.size)
    return shown(result, entry.signature, entry.findings[0].observed if entry.findings else "")


def rewritten(file: Path, entry: CorpusEntry) -> tuple[str | None, str]:
    """Saves the first new script that shows the finding; what was saved stays where none does."""
    script, old = file.with_name(SCRIPT_FILE), saved_script(file)
    try:
        for text in reproducer.scripts(
            entry.case,
            signature=entry.signature,
            findings=entry.findings,
            torch_version=entry.torch,
        ):
            write_atomic(script, text.encode())
            if run(script, entry) is Shown.YES:
                if entry.notes.pop(SCRIPT_FILE, None):
                    write_atomic(file, encode_entry(entry))
                return text, str(Shown.YES)
    except UsageError as error:
        return old, str(error)
    if old is not None:
        write_atomic(script, old.encode())
    return old, "no new script shows the finding"


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
        "--rewrite", action="store_true", help="write every script anew, and run it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rows = []
    for file in entry_files(args.corpus):
        if file.name == CASE_FILE and read_entry(file).signature:
            rows.append(row(file, check=args.check, rewrite=args.rewrite))
            if not args.json:
                print(f"{rows[-1].lines:4}  {rows[-1].result:25}  {rows[-1].name}", flush=True)
    lines = [r.lines for r in rows if r.lines] or [0]
    sums = {
        "entries": len(rows),
        "scripts": sum(r.lines > 0 for r in rows),
        "median lines": statistics.median(lines),
        "most lines": max(lines),
        f"of at most {TYPICAL} lines": sum(0 < r.lines <= TYPICAL for r in rows),
        "results": dict(Counter(r.result for r in rows)),
    }
    print(json.dumps(sums | {"rows": list(map(dataclasses.asdict, rows))}) if args.json else sums)
    judged = [r.result for r in rows if r.result != "not run"]
    return EXIT_FINDING if any(result != Shown.YES for result in judged) else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
