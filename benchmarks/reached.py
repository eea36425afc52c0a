"""Which lines of torch's data-parallel code drawn cases run: the rest says what is not drawn yet.

``--cases`` cases run in one world, with all mends, and coverage.py (``pip install coverage``)
notes the lines. Left out are lines that raise, since cases keep to what is documented, and
functions that a mend changes. ``--list fsdp/_fully_shard`` prints the functions of such files that
no case ran, and of others the lines that none ran. Some need more ranks, or CUDA.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

from common import (
    configure,
    describe_machine,
    machine_line,
    make_console,
    make_parser,
    print_json,
    run_main,
)
from reached_probe import FOLDER, SAVE_SECONDS
from rich.table import Table

from fuzzshard.errors import EXIT_CLEAN, UsageError
from fuzzshard.mending.mend import mends_for, own_mends
from fuzzshard.mending.source import edited_functions, torch_folder, why_not
from fuzzshard.strategies.steered import steered_stream
from fuzzshard.world import World

PROBE = Path(__file__).with_name("reached_probe.py")


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of torch, and which of its lines a case ran."""

    name: str
    line: int
    missed: list[int]
    reached: list[int]

    def text(self) -> str:
        """The function, and what of it no case ran."""
        what = ", ".join(map(str, self.missed)) if self.reached else "never"
        return f"  {self.line} {self.name}: {what}"


def functions(regions: Mapping[str, Any], mended: Set[int]) -> list[Function]:
    """The functions that coverage.py reports of a file, with lines that may run, without those
    that begin in one of the lines ``mended``.
    """
    found = [
        Function(name, told["start_line"], told["missing_lines"], told["executed_lines"])
        for name, told in regions.items()
        if name  # what is in no function has none
    ]
    return [f for f in found if (f.missed or f.reached) and f.line not in mended]


def mended_lines() -> dict[Path, set[int]]:
    """The lines in which functions begin that mends change, by file."""
    lines: dict[Path, set[int]] = {}
    for mend in own_mends().values():
        for before, _ in () if why_not(mend) else edited_functions(mend.edits_here()).values():
            lines.setdefault(before.file, set()).add(before.first_line)
    return lines


def read_files(folder: Path) -> dict[str, list[Function]]:
    """The functions of all files of which ranks have noted lines, by their paths in torch."""
    import coverage

    noted = coverage.Coverage(data_file=folder / "rank", config_file=False, messages=False)
    noted.combine()
    noted.exclude(r"^\s*raise\b")
    noted.json_report(outfile=str(folder / "report"))
    told, mended, files = json.loads((folder / "report").read_text()), mended_lines(), {}
    for name, report in told["files"].items():
        file = Path(name).absolute()
        path = file.relative_to(torch_folder()).as_posix()
        files[path] = functions(report["functions"], mended.get(file, set()))
    return files


Row = tuple[str, int, int, int, int]
"""A file, its functions and how many of them ran, its lines and how many of them ran."""


def sums(path: str, found: list[Function]) -> Row:
    """The row of a file."""
    missed, reached = sum(len(f.missed) for f in found), sum(len(f.reached) for f in found)
    return path, len(found), sum(bool(f.reached) for f in found), missed + reached, reached


def make_table(rows: list[Row]) -> Table:
    """A file in each row, the one with the most missed lines first."""
    table = Table(title="Reached")
    table.add_column("file")
    for title in ("functions", "run", "lines", "run", "%"):
        table.add_column(title, justify="right")
    for path, *numbers in sorted(rows, key=lambda row: row[4] - row[3]):
        table.add_row(path, *map(str, numbers), str(percent(numbers[3], numbers[2])))
    return table


def percent(part: int, whole: int) -> int:
    """A share of 100."""
    return round(100 * part / max(1, whole))


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--cases", type=int, default=300, help="cases to run")
    parser.add_argument(
        "--list", action="append", default=[], metavar="FILE", help="a part of a path in torch"
    )
    args = parser.parse_args()
    if importlib.util.find_spec("coverage") is None:
        raise UsageError("coverage is not installed", "pip install coverage")
    console, config = make_console(args), configure(args)
    config = dataclasses.replace(config, preload=(*config.preload, str(PROBE)))
    with tempfile.TemporaryDirectory(prefix="fuzzshard-reached-") as folder:
        os.environ[FOLDER] = folder
        with World(config) as world:
            world.start()
            machine = describe_machine(world.info, config.size)
            ran = run_cases(world, args.seed, args.cases, console.print)
            time.sleep(2 * SAVE_SECONDS)
        files = read_files(Path(folder))
    if args.json:
        plain = {
            path: [dataclasses.asdict(each) for each in found] for path, found in files.items()
        }
        print_json({"machine": machine, "cases": ran, "files": plain})
        return EXIT_CLEAN
    console.print(machine_line(machine, args.seed))
    rows = [sums(path, found) for path, found in files.items()]
    console.print(make_table(rows))
    lines, reached = sum(row[3] for row in rows), sum(row[4] for row in rows)
    share = percent(reached, lines)
    console.print(f"{ran} cases ran {reached} of {lines} lines, {share} %")
    for path, found in files.items():
        if any(part in path for part in args.list):
            console.print(path)
            for function in found:
                if function.missed:
                    console.print(function.text())
    return EXIT_CLEAN


def run_cases(world: World, seed: int, count: int, report: Callable[[str], None]) -> int:
    """Run the first ``count`` cases of a stream, or fewer if that is interrupted; return how many
    came to an end.
    """
    config, began, ran = world.config, time.monotonic(), 0
    stream = steered_stream(seed, world_size=config.size, cuda=config.device == "cuda")
    try:
        for case in itertools.islice(stream, count):
            world.run(case, mends=mends_for())
            ran += 1
            if ran % 20 == 0:
                report(f"{ran} cases, {time.monotonic() - began:.0f} s")
    except KeyboardInterrupt:
        report("interrupted; what has been noted follows")
    return ran


if __name__ == "__main__":
    run_main(main)
