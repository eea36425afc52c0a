"""Count how many source files each of the last additions changed: what adding one more touches.

A commit is an addition if it brings a name that none of its removed lines has: in
fuzzshard/parts the ``tag`` of a leaf or an op, the ``name`` of an engine, a loss, an oracle or an
option, the first argument of a ``Kind`` of leaves or a ``Choice`` of swarms; anywhere a feature
of cases ("word:word" as a key); or if its subject begins with ``proof:``. So a part that is moved
is no addition, and one that is renamed is. Counted are the Python files of fuzzshard/ and
strategies/ without the mends, each of which is data; a file that is moved counts once. Merges are
left out. Runs nothing but git.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from common import make_console, print_json, run_main
from rich.table import Table

ROOT = Path(__file__).parent.parent
SOURCES = ("fuzzshard/*.py", "strategies/*.py", ":!fuzzshard/mends")
PROOF = "proof:"
PARTS = "fuzzshard/parts/"
_OF_PARTS = (
    re.compile(r'\btag="(\w+)"'),
    re.compile(r'^    name(?:: [^=\n]+)?(?:, \w+)* = "(\w+)"', re.MULTILINE),
    re.compile(r'\b(?:Kind|Choice)\(\s*"(\w+)"'),
)
_FEATURE = re.compile(r'^ *"(\w+:\w+)":', re.MULTILINE)


class Addition(NamedTuple):
    """A commit that adds something, and the sources that it changed."""

    commit: str
    subject: str
    names: tuple[str, ...]
    files: tuple[str, ...]


def main() -> int:
    """Print the table; exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--last", type=int, default=20, help="how many additions, newest first")
    parser.add_argument("--revisions", default="HEAD", help="the commits to look at, A..B")
    args = parser.parse_args()
    found = [*islice(additions(ROOT, args.revisions), args.last)]
    sizes = [len(each.files) for each in found]
    figures = {"median": statistics.median(sizes or [0]), "worst": max(sizes, default=0)}
    if args.json:
        print_json({"additions": [each._asdict() for each in found], **figures})
        return 0
    table = Table("commit", "files", "names", "subject")
    for each in found:
        table.add_row(each.commit, str(len(each.files)), ", ".join(each.names), each.subject)
    console = make_console(args)
    console.print(table)
    median, worst = figures["median"], figures["worst"]
    console.print(f"files changed: {median:g} in the median, {worst} at most")
    return 0


def additions(repository: Path, revisions: str) -> Iterator[Addition]:
    """Yield the additions among ``revisions``, the newest first."""
    log = ("log", "--no-merges", "--find-renames", "--patch", "--unified=0", "--no-color")
    command = ["git", *log, "--format=%x00%h %s", revisions, "--", *SOURCES]
    text = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    for each in text.stdout.split("\0")[1:]:
        heading, *patches = each.split("\ndiff --git ")
        commit, _, subject = heading.strip().partition(" ")
        files = {each.splitlines()[0].rpartition(" b/")[2]: each for each in patches}
        names = _names(files, "+") - _names(files, "-")
        if names or subject.startswith(PROOF):
            yield Addition(commit, subject, tuple(sorted(names)), tuple(files))


def _names(files: Mapping[str, str], sign: str) -> set[str]:
    """Return the names in the lines that begin with ``sign``, of the patch of each file."""
    found = set()
    for file, patch in files.items():
        lines = (line.removeprefix(sign) for line in patch.splitlines() if line.startswith(sign))
        text = "\n".join(lines)
        for pattern in (_FEATURE, *(_OF_PARTS if file.startswith(PARTS) else ())):
            found.update(pattern.findall(text))
    return found


if __name__ == "__main__":
    run_main(main)
