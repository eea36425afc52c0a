"""How many planted bugs are found, after how many cases, and how small the reproducers get.

Every bug is a Python file whose apply() breaks torch in the process that calls it. All bugs are hunted with
the same stream of cases; a finding that torch shows without the bug does not count.
"""

from __future__ import annotations

import concurrent.futures
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from common import configure, describe_machine, machine_line, make_console, make_parser, print_json, run_main
from hunt import Hunt, HuntSettings, PlantedBug, Row, StockWorld, read_index, totals
from rich.console import Console
from rich.table import Table

from fuzzshard.campaign.control import Control
from fuzzshard.campaign.judge import SHRINK_BUDGET
from fuzzshard.errors import EXIT_CLEAN, EXIT_INTERRUPTED
from fuzzshard.shrink import Budget
from fuzzshard.world import World


def row_line(row: Row) -> str:
    """One row as it finishes."""
    if not row.found:
        extra = f" ({row.note})" if row.note else ""
        return f"{row.id}: {row.outcome} after {row.cases} cases, {row.seconds:.1f} s{extra}"
    script = {True: "script ok", False: "SCRIPT WRONG", None: "script not run"}[row.script_ok]
    return (
        f"{row.id}: found after {row.cases} cases, {row.seconds:.1f} s: {row.signature}; "
        f"{row.modules_before} -> {row.modules_after} modules in {row.shrink_seconds:.0f} s, {script}"
        f"{'; ' + row.note.strip() if row.note else ''}"
    )


def make_table(rows: list[Row]) -> Table:
    """All rows, and the totals."""
    table = Table(title="Recall of planted bugs")
    for name in ("bug", "difficulty", "outcome", "cases", "seconds", "signature"):
        table.add_column(name, justify="right" if name in ("cases", "seconds") else "left")
    for name in ("modules", "ops", "mesh", "script", "stock", "flaky"):
        table.add_column(name)
    for row in rows:
        sizes = ("", "", "")
        if row.found:
            sizes = (
                f"{row.modules_before} -> {row.modules_after}",
                f"{row.ops_before} -> {row.ops_after}",
                row.mesh_after
                if row.mesh_after == row.mesh_before
                else f"{row.mesh_before} -> {row.mesh_after}",
            )
        script = {True: "ok", False: "WRONG", None: ""}[row.script_ok]
        numbers = (str(row.cases), f"{row.seconds:.1f}")
        counts = (str(row.stock or ""), str(row.flaky or ""))
        table.add_row(row.id, row.difficulty, row.outcome, *numbers, row.signature, *sizes, script, *counts)
    return table


def hunt_all(
    bugs: list[PlantedBug], stock: StockWorld, settings: HuntSettings, jobs: int, console: Console
) -> Iterator[Row]:
    """Yields the rows as they finish; after Ctrl-C the rest of them, as they stand, and then raises it."""
    controls = [Control(None) for _ in bugs]
    interrupted = False
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        hunts = [Hunt(bug, stock, settings, control) for bug, control in zip(bugs, controls, strict=True)]
        waiting = {pool.submit(hunt.run) for hunt in hunts}
        while waiting:
            try:
                done, waiting = concurrent.futures.wait(
                    waiting, return_when=concurrent.futures.FIRST_COMPLETED
                )
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                console.print("interrupted; waiting for the cases that run")
                for control in controls:
                    control.halt("interrupted")
                continue
            for future in done:
                yield future.result()
    if interrupted:
        raise KeyboardInterrupt


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--planted", type=Path, required=True, help="folder with INDEX.json and mutants/")
    parser.add_argument("--max-cases", type=int, default=500, help="cases for each bug")
    parser.add_argument("--only", help="ids of the bugs to hunt, separated by commas")
    parser.add_argument(
        "--jobs", type=int, default=1, help="bugs hunted at the same time, each in its own world"
    )
    parser.add_argument(
        "--shrink-seconds", type=float, default=SHRINK_BUDGET.max_seconds, help="limit for each finding"
    )
    parser.add_argument("--no-script", action="store_true", help="do not run the reproducers")
    parser.add_argument("--keep", type=Path, help="folder for the shrunk cases and their scripts")
    args = parser.parse_args()
    bugs = read_index(args.planted, frozenset(args.only.split(",")) if args.only else None)
    config, console = configure(args), make_console(args)
    rows: list[Row] = []
    interrupted = False
    with World(config) as stock, tempfile.TemporaryDirectory(prefix="fuzzshard-recall-") as temporary:
        stock.start()
        machine = describe_machine(stock.info, config.size)
        console.print(machine_line(machine, args.seed))
        settings = HuntSettings(
            mutants=args.planted / "mutants",
            config=config,
            seed=args.seed,
            max_cases=args.max_cases,
            budget=Budget(max_evaluations=SHRINK_BUDGET.max_evaluations, max_seconds=args.shrink_seconds),
            keep=args.keep or Path(temporary),
            scripts=not args.no_script,
        )
        try:
            for row in hunt_all(bugs, StockWorld(stock), settings, args.jobs, console):
                rows.append(row)
                console.print(row_line(row))
        except KeyboardInterrupt:
            interrupted = True
    order = [bug.id for bug in bugs]
    rows.sort(key=lambda row: order.index(row.id))
    result = {
        "rows": [msgspec.to_builtins(row) for row in rows],
        **totals(rows),
        "seed": args.seed,
        "max_cases": args.max_cases,
        "machine": machine,
    }
    if args.json:
        print_json(result)
    else:
        console.print(make_table(rows))
        console.print(", ".join(f"{name} {value}" for name, value in totals(rows).items()))
    return EXIT_INTERRUPTED if interrupted else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
