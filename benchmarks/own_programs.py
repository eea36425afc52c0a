"""``fuzzshard check`` over programs as users have them, right ones and mistakes, in four models.

The programs are those of ``tests/check/own_programs.py``: a language model, an image classifier, a
mixture of experts and an encoder with adapters. A mistake is *named* if the report says what it
is, *found* if it is reported in other words, *said* to be unseen if a limit names it, else
*unseen*. An operator is right if the line that shall be named is, or none where none computes
anything wrong. Exits with 1 where a right program is not equal.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from common import describe_machine, machine_line, make_console, make_parser, print_json, run_main
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "check"))
from own_programs import MISTAKES, RIGHT, Mistake

from fuzzshard.checking.check import Checker, trainings
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING
from fuzzshard.subject.subject import MeshShape, Subject
from fuzzshard.world import WorldConfig
from fuzzshard.world.world import SUBJECT_SECONDS

COLUMNS = ("kind", "model", "program", "outcome", "operator", "seconds")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--show", action="store_true", help="print all reports")
    args = parser.parse_args()
    console, rows = make_console(args), []
    with Checker(Subject(build="", inputs=""), WorldConfig(size=2), SUBJECT_SECONDS) as checker:
        for name, one in (RIGHT | MISTAKES).items():
            if args.only not in name:
                continue
            mistake = one if isinstance(one, Mistake) else None
            program = one.program if isinstance(one, Mistake) else one
            with tempfile.TemporaryDirectory() as folder:
                checker.subject = one.subject(Path(folder)) if mistake else one.subject()
                mesh = [MeshShape.parse(program.mesh)]
                options = {"steps": 2, "microbatches": 2, "seed": args.seed} | program.options
                (training,) = trainings(checker.subject, mesh, (), **options)
                report = checker.run(training)
            kind, seen, operator = "right", str(report.outcome), ""
            if mistake:
                kind, (seen, operator) = "mistake", mistake.judge(report)
            if args.show or (kind == "right" and seen != "equal"):
                console.print(f"{name}:", *report.lines(), sep="\n", markup=False)
            seconds = f"{report.seconds:.1f}"
            rows.append((kind, program.file, name, seen, operator, seconds))
        machine = describe_machine({"torch": checker.torch}, 2)
    table = Table(*COLUMNS, title=machine_line(machine, args.seed))
    for row in rows:
        table.add_row(*row)
    console.print(table)
    counts = Counter(f"{kind}, {seen}" for kind, _, _, seen, *_ in rows)
    counts |= Counter(f"operator {operator}" for *_, operator, _ in rows if operator)
    console.print(", ".join(f"{what}: {number}" for what, number in counts.items()))
    if args.json:
        told = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        print_json({**machine, "seed": args.seed, "programs": told})
    alarms = any(kind == "right" and seen != "equal" for kind, _, _, seen, *_ in rows)
    return EXIT_FINDING if alarms else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
