"""How long shrinking takes, and how small its results are.

python benchmarks/shrink_figures.py --planted DIR  # INDEX.json, mutants/ID.py and triggers/ID.py
python benchmarks/shrink_figures.py --corpus DIR  # entries with their unshrunk.json

Each finding is shrunk by the campaign's own code. A candidate that fails with a planted bug is run
without it as well, which takes a tenth of the time or so. The trigger of a bug is a script that
somebody wrote by hand for it; its size is measured by running it.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from common import configure, look_at_machine, make_console, make_parser, print_json, run_main
from hunt import Hunt, HuntSettings, reduced
from hunt_rows import (
    ERROR,
    INTERRUPTED,
    MISSED,
    PlantedBug,
    Row,
    describe_sizes,
    mutants,
    read_index,
    totals,
)
from jobs import in_processes
from shrink_tables import Comparison, compare, row_line, summary
from signatures import signature_figures, signature_lines
from trigger_size import size_of_script

from fuzzshard.campaign.control import Control, ControlledWorld
from fuzzshard.campaign.finding_store import FindingStore
from fuzzshard.campaign.judge import Stopped, judge_clearly
from fuzzshard.campaign.known import Found
from fuzzshard.case import codec
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.store import CASE_FILE, SCRIPT_FILE, UNSHRUNK_FILE, entry_files
from fuzzshard.errors import EXIT_CLEAN, EXIT_INTERRUPTED, FuzzshardError, UsageError
from fuzzshard.reproducer import check, scripts
from fuzzshard.shrink import Budget
from fuzzshard.world import World

Task = PlantedBug | Path


def shrink_one(task: tuple[Task, HuntSettings], control: Control) -> Row:
    """Hunts a bug, or takes a saved finding, and shrinks it."""
    subject, settings = task
    if isinstance(subject, PlantedBug):
        return Hunt(subject, settings, control).run()
    row = Row(id=subject.parent.name, difficulty="", outcome=MISSED)
    try:
        _shrink_entry(row, subject, settings, control)
    except Stopped:
        row.outcome = INTERRUPTED
    except FuzzshardError as error:
        row.outcome, row.note = ERROR, str(error)
    return row


def _shrink_entry(row: Row, file: Path, settings: HuntSettings, control: Control) -> None:
    """Starts from the case as it was found."""
    entry = read_entry(file)
    case = codec.decode(file.with_name(UNSHRUNK_FILE).read_bytes())
    size = max(case.mesh.size, entry.case.mesh.size)
    config = dataclasses.replace(settings.config, size=size, preload=entry.preload)
    store = FindingStore(settings.keep / row.id, tuple(map(Path, entry.preload)), scripts, check)
    with World(config) as world:
        runner = ControlledWorld(world, control)
        found_as, verdict = judge_clearly(runner, case)
        if verdict.signature != entry.signature:
            row.note = f"the case as found shows {verdict.signature or verdict.status}"
            return
        found = Found(0, found_as, verdict)
        reduction = reduced(runner, found, settings.budget)
    judged = reduction.judged
    if not judged.confirmation.reproduced:
        row.flaky += 1
        return
    describe_sizes(row, found.case, judged)
    folder = store.save_found(found, judged.info)
    row.script_ok = store.verify(folder, store.save_judged(folder, judged))
    row.script_lines = len((folder / SCRIPT_FILE).read_text().splitlines())
    row.shrinkings.append(reduction.shrinking)


def read_tasks(args: argparse.Namespace) -> list[Task]:
    """What is to be shrunk; raises :class:`UsageError` for nothing."""
    only = frozenset(args.only.split(",")) if args.only else None
    if args.planted:
        return list(read_index(args.planted, only))
    files = [
        f
        for f in entry_files([args.corpus])
        if f.name == CASE_FILE and f.with_name(UNSHRUNK_FILE).exists()
    ]
    chosen: list[Task] = [file for file in files if only is None or file.parent.name in only]
    if not chosen:
        raise UsageError(
            f"{args.corpus} has no entry with an {UNSHRUNK_FILE}", "give the folder of a campaign"
        )
    return chosen


def compared(rows: list[Row], triggers: Path) -> Iterator[Comparison]:
    """The found bugs beside their triggers, where they have one that runs."""
    for row in rows:
        trigger = triggers / f"{row.id}.py"
        if row.found and trigger.is_file() and (size := size_of_script(trigger)) is not None:
            yield compare(row, size)


def main() -> int:
    parser = make_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--planted", type=Path, help="folder with INDEX.json, mutants/ and triggers/"
    )
    source.add_argument("--corpus", type=Path, help="entries that have their unshrunk.json")
    parser.add_argument("--only", help="ids or names of entries, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="findings at the same time (1)")
    parser.add_argument(
        "--max-cases", type=int, default=2000, help="cases to find each bug (2000)"
    )
    parser.add_argument(
        "--shrink-seconds", type=float, default=600.0, help="limit of each reduction (600)"
    )
    parser.add_argument(
        "--findings",
        type=int,
        default=1,
        help="findings of each bug whose signatures are counted (1)",
    )
    parser.add_argument("--keep", type=Path, help="folder for the shrunk cases and their scripts")
    args = parser.parse_args()
    tasks = read_tasks(args)
    config, console = configure(args), make_console(args)
    machine = look_at_machine(config, console, args.seed)
    rows: list[Row] = []
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="fuzzshard-shrinking-") as temporary:
        settings = HuntSettings(
            mutants=mutants(args.planted or args.corpus),
            config=config,
            seed=args.seed,
            max_cases=args.max_cases,
            budget=Budget(max_seconds=args.shrink_seconds),
            keep=args.keep or Path(temporary),
            findings=args.findings,
        )
        try:
            for row in in_processes(
                shrink_one, [(task, settings) for task in tasks], args.jobs, console
            ):
                rows.append(row)
                console.print(row_line(row))
        except KeyboardInterrupt:
            interrupted = True
    rows.sort(key=lambda row: row.id)
    comparisons = list(compared(rows, args.planted / "triggers")) if args.planted else []
    sums = summary(rows, comparisons) | {"signatures": dict(signature_figures(rows))}
    for each in comparisons:
        console.print(each.line())
    for line in signature_lines(rows):
        console.print(line)
    for name, values in sums.items():
        console.print(
            f"{name}: " + ", ".join(f"{key} {_text(value)}" for key, value in values.items())
        )
    if args.json:
        extra = {"comparisons": [msgspec.to_builtins(each) for each in comparisons]}
        print_json(
            {"rows": [msgspec.to_builtins(r) for r in rows], **extra, **sums, "machine": machine}
        )
    console.print(", ".join(f"{name} {value}" for name, value in totals(rows).items()))
    return EXIT_INTERRUPTED if interrupted else EXIT_CLEAN


def _text(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


if __name__ == "__main__":
    run_main(main)
