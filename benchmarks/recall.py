"""How many planted bugs are found, after how many cases, and how small the reproducers get.

Every bug is a Python file whose apply() breaks torch in the process that calls it. It is found by
a finding that comes three times of three with it and goes away without it: on torch as it is the
case must pass three times of three, or be refused where that is announced, as found and as shrunk.
All bugs are hunted with the same stream of cases; with several seeds, each hunts every bug.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import msgspec
from common import (
    add_shrink_seconds,
    configure,
    look_at_machine,
    make_console,
    make_parser,
    print_json,
    run_main,
    shrink_budget,
)
from hunt import Hunt, HuntSettings
from hunt_rows import PlantedBug, Row, mutants, read_index, totals
from jobs import in_processes
from recall_tables import (
    cases_to_find,
    difficulties_table,
    finite,
    make_table,
    rarely_found,
    row_line,
)
from signatures import signature_figures, signature_lines

from fuzzshard.campaign.control import Control
from fuzzshard.errors import EXIT_CLEAN, EXIT_INTERRUPTED
from fuzzshard.mending.mend import mends_for


def hunt(task: tuple[PlantedBug, HuntSettings], control: Control) -> Row:
    """Hunts one bug."""
    return Hunt(*task, control).run()


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--planted",
        type=Path,
        required=True,
        help="folder with INDEX.json and mutants/, or with a Python file for each bug",
    )
    parser.add_argument("--max-cases", type=int, default=500, help="cases for each bug")
    parser.add_argument("--only", help="ids of the bugs to hunt, separated by commas")
    parser.add_argument(
        "--jobs", type=int, default=1, help="bugs hunted at the same time, each in its own world"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="hunts of each bug, with consecutive seeds"
    )
    add_shrink_seconds(parser)
    parser.add_argument(
        "--on", choices=("stock", "mended"), default="stock", help="the torch of all runs"
    )
    parser.add_argument("--no-script", action="store_true", help="do not run the reproducers")
    parser.add_argument(
        "--findings",
        type=int,
        default=1,
        help="findings of each bug whose signatures are counted (1)",
    )
    parser.add_argument("--keep", type=Path, help="folder for the shrunk cases and their scripts")
    args = parser.parse_args()
    bugs = read_index(args.planted, frozenset(args.only.split(",")) if args.only else None)
    config, console = configure(args), make_console(args)
    rows: list[Row] = []
    interrupted = False
    machine = look_at_machine(config, console, args.seed)
    with tempfile.TemporaryDirectory(prefix="fuzzshard-recall-") as temporary:
        base = HuntSettings(
            mutants=mutants(args.planted),
            config=config,
            seed=args.seed,
            max_cases=args.max_cases,
            budget=shrink_budget(args),
            keep=args.keep or Path(temporary),
            scripts=not args.no_script,
            findings=args.findings,
            mends=mends_for() if args.on == "mended" else (),
        )
        settings = [
            dataclasses.replace(base, seed=seed, keep=base.keep / str(seed))
            for seed in range(args.seed, args.seed + args.repeat)
        ]
        try:
            for row in in_processes(
                hunt, [(bug, each) for bug in bugs for each in settings], args.jobs, console
            ):
                rows.append(row)
                console.print(row_line(row))
        except KeyboardInterrupt:
            interrupted = True
    order = [bug.id for bug in bugs]
    rows.sort(key=lambda row: (order.index(row.id), row.seed))
    if args.json:
        print_json(
            {
                "rows": [msgspec.to_builtins(row) for row in rows],
                **totals(rows),
                "signatures": signature_figures(rows),
                "median_cases": finite(cases_to_find(rows)),
                "seed": args.seed,
                "max_cases": args.max_cases,
                "machine": machine,
            }
        )
    else:
        console.print(make_table(rows))
        console.print(difficulties_table(rows))
        if rare := rarely_found(rows, args.repeat):
            console.print(f"found in fewer than two thirds of the repeats: {', '.join(rare)}")
    for line in signature_lines(rows):
        console.print(line)
    for figures in (signature_figures(rows), totals(rows)):
        console.print(", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    return EXIT_INTERRUPTED if interrupted else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
