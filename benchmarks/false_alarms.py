"""Runs cases and asks for an explanation of every verdict that is not PASS.

An explanation is a documented refusal of torch, or a known bug of torch: with mends the case
passes. Whatever has none is listed, and its case saved; then the exit code is 1. With ``--on
mended`` cases run on torch with all mends, and what fails there counts if it fails on torch as it
is. How engines were compared, and how many of their runs were not, is counted as well.
"""

from __future__ import annotations

import concurrent.futures
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from common import (
    add_alarm_options,
    add_shrink_seconds,
    configure_worlds,
    describe_machine,
    machine_line,
    make_console,
    make_parser,
    print_json,
    run_main,
    shrink_budget,
)
from examination import Examination, Unexplained, shorten
from rich.console import Console
from rich.table import Table

from fuzzshard.analysis.steering import Steering
from fuzzshard.campaign.control import Control
from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INTERRUPTED
from fuzzshard.instruments import off_lines
from fuzzshard.mending.mend import mends_for
from fuzzshard.report.comparisons import HEADS, Comparisons, comparison_rows
from fuzzshard.strategies.steered import reach, steered_stream
from fuzzshard.world import World, WorldConfig

PROGRESS_EVERY = 250
"""Cases between two lines that say how far the run is."""


def make_tables(result: dict[str, Any]) -> list[Table]:
    """One table for each kind of count."""
    tables = []
    titles = {
        "comparisons": "Verdicts by status and comparison",
        "explanations": "Explanations",
        "judged": "Engines that passed",
        "notes": "Refused or not applicable",
        "known": "Known causes",
        "signatures": "Unexplained by signature",
    }
    for key, title in titles.items():
        table = Table(title=title, title_justify="left")
        table.add_column(key)
        table.add_column("cases", justify="right")
        for name, count in result[key].items():
            table.add_row(shorten(name, 140), str(count))
        if result[key]:
            tables.append(table)
    compared = msgspec.convert(result["compared"], dict[str, Comparisons])
    tables.append(Table(*HEADS, title="How engines were compared", title_justify="left"))
    for row in comparison_rows(compared):
        tables[-1].add_row(*row)
    return tables


class Progress:
    """Prints what cannot be explained as it comes, and now and then how far the run is."""

    def __init__(self, console: Console, limit: int) -> None:
        self.console = console
        self.limit = limit
        self.began = time.monotonic()
        self.cases = self.unexplained = 0

    def add(self, entry: Unexplained | None) -> None:
        """One more case was judged, and is ``entry`` on the list of the unexplained."""
        self.cases += 1
        if entry is not None:
            self.unexplained += 1
            repeats = "" if entry.repeats else " (did not repeat)"
            self.console.print(f"case {entry.index}: {entry.name}{repeats}: {entry.what}")
        if self.cases % PROGRESS_EVERY == 0:
            seconds = time.monotonic() - self.began
            self.console.print(
                f"{self.cases} of {self.limit} cases in {seconds:.0f} s, {self.unexplained} "
                "unexplained"
            )


def examine_all(examination: Examination, configs: Sequence[WorldConfig], cases: Prefetch) -> bool:
    """Judges all cases in a world for each config; False after Ctrl-C. Raises what a world
    raised.
    """
    control = Control(None)

    def work(config: WorldConfig) -> None:
        with World(config) as world:
            world.start()
            examination.work(world, cases, control)

    with concurrent.futures.ThreadPoolExecutor(len(configs)) as pool:
        workers = [pool.submit(work, config) for config in configs]
        try:
            concurrent.futures.wait(workers, return_when=concurrent.futures.FIRST_EXCEPTION)
        except KeyboardInterrupt:
            control.halt("interrupted")
        finally:
            cases.close()
    for worker in workers:
        worker.result()
    return not control.halted


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="cases to run")
    add_alarm_options(parser, on="stock")
    parser.add_argument(
        "--extra-mends", type=Path, nargs="+", default=[], help="folders of more mends"
    )
    parser.add_argument(
        "--require", nargs="+", default=(), help="globs of features that every case has"
    )
    add_shrink_seconds(parser)
    parser.add_argument(
        "--keep", type=Path, help="folder for unexplained cases; None: a temporary one"
    )
    args = parser.parse_args()
    configs, console = configure_worlds(args, args.jobs), make_console(args)
    config = configs[0]
    keep = args.keep or Path(tempfile.mkdtemp(prefix="fuzzshard-unexplained-"))
    with World(config) as world:
        world.start()
        machine = {**describe_machine(world.info, config.size), "jobs": args.jobs}
        off = off_lines(world.info)
    console.print(machine_line(machine, args.seed))
    for line in off:
        console.print(line)
    console.print(f"unexplained cases are saved in {keep}")
    examination = Examination(
        mends_for(extra=args.extra_mends),
        keep,
        Progress(console, args.cases).add,
        on_mended=args.on == "mended",
        budget=shrink_budget(args),
    )
    on_cuda = config.device == "cuda"
    drawn = {"world_size": config.size, "cuda": on_cuda}
    steering = Steering(require=tuple(args.require))
    steered = reach(steering, args.seed, **drawn)
    stream = steered_stream(args.seed, steered=steered, **drawn)
    began = time.monotonic()
    finished = examine_all(
        examination, configs, Prefetch(stream, ahead=4 * args.jobs, limit=args.cases)
    )
    seconds = time.monotonic() - began
    result = {**examination.result(), "seconds": seconds, "seed": args.seed, "machine": machine}
    if args.json:
        print_json(result)
    else:
        for table in make_tables(result):
            console.print(table)
        count = len(examination.unexplained)
        console.print(
            f"{result['cases']} cases in {seconds:.0f} s, {count} unexplained, in {keep}"
        )
    if not finished:
        return EXIT_INTERRUPTED
    return EXIT_FINDING if examination.unexplained else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
