"""Which lines and branches of torch's own Python a stream of cases reaches, by file, and which it
never does.

Every case is traced, so this is slower than a campaign with --guidance coverage. On CUDA before
Python 3.12 hooks that autograd runs in its own threads are not seen. Beside each branch that is
never reached stands why, from unreached.toml; one without a reason is UNEXPLAINED, and the exit
code is 1.
"""

from __future__ import annotations

import ast
import concurrent.futures
import fnmatch
import importlib.util
import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from common import (
    configure,
    describe_machine,
    machine_line,
    make_console,
    make_parser,
    print_json,
    run_main,
)
from coverage import Coverage
from rich.table import Table
from unreached import Explanations, load_reasons

from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.campaign.judge import judge
from fuzzshard.errors import InfraError
from fuzzshard.guidance import Feedback, Guidance, guided
from fuzzshard.guidance.reached import Point, Reached
from fuzzshard.strategies import case_stream
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

MILESTONES = (50, 100, 200, 500, 1000, 2000, 5000, 10000)


@dataclass
class FileCoverage:
    """One file: what was reached of how many, and the branches that were not: (line, target,
    source).
    """

    path: str
    lines: int
    num_lines: int
    branches: int
    num_branches: int
    missing: list[tuple[int, int, str]]
    missing_lines: list[int]


def torch_folder() -> Path:
    """Where torch is installed, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise InfraError("torch is not installed", "pip install torch")
    return Path(spec.origin).parent


def analyse(points: Iterable[Point], patterns: list[str]) -> list[FileCoverage]:
    """The files below ``torch`` that match a pattern, by what the coverage library makes of the
    points.
    """
    root = torch_folder()
    arcs: dict[str, list[tuple[int, int]]] = {}
    for path, start, end in points:
        # A line by itself is an arc into it; the library has no arcs from line 0.
        arcs.setdefault(path, []).append((start or -1, end))
    files = [
        path
        for path in sorted(str(p.relative_to(root)) for p in root.rglob("*.py"))
        if any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
    ]
    library = Coverage(data_file=None, branch=True, config_file=False)
    library.get_data().add_arcs({str(root / path): arcs.get(path, []) for path in files})
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        library.json_report(morfs=[str(root / path) for path in files], outfile=report.name)
        measured = json.loads(Path(report.name).read_bytes())["files"]
    # Every file by its name as the report has it: relative to the working folder, if it is below
    # that.
    by_path = {
        str(Path(name).resolve().relative_to(root.resolve())): each
        for name, each in measured.items()
    }
    return [_file(path, by_path[path], (root / path).read_text().splitlines()) for path in files]


def _file(path: str, report: dict[str, Any], source: list[str]) -> FileCoverage:
    """What stands in functions; the rest runs once, when ranks import it, and is not traced."""
    inside = function_lines("\n".join(source))
    missing = inside.intersection(report["missing_lines"])
    summary = report["summary"]
    return FileCoverage(
        path=path,
        lines=len(inside.intersection(report["executed_lines"])),
        num_lines=len(inside.intersection(report["executed_lines"])) + len(missing),
        branches=summary["covered_branches"],
        num_branches=summary["num_branches"],
        missing=[(a, b, source[a - 1].strip()) for a, b in report["missing_branches"]],
        missing_lines=sorted(missing),
    )


def function_lines(source: str) -> set[int]:
    """The lines in the bodies of functions."""
    nodes = ast.walk(ast.parse(source))
    functions = (
        node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {
        line for f in functions for line in range(f.body[0].lineno, (f.end_lineno or f.lineno) + 1)
    }


def run_stream(
    config: WorldConfig, seed: int, guidance: Guidance, count: int, reached: Reached
) -> list[tuple[int, int]]:
    """Runs ``count`` cases in one world; after how many cases how many points were reached."""
    growth = []
    on_cuda = config.device == "cuda"
    fresh = case_stream(seed, world_size=config.size, cuda=on_cuda)
    learner = guided(guidance, fresh, seed, world_size=config.size, cuda=on_cuda)
    cases = Prefetch(learner, ahead=4, limit=count)
    try:
        with World(config) as world:
            while (taken := cases.take()) is not None:
                index, case = taken
                verdict = judge(world, case)
                new = reached.add(world.take_points())
                cases.tell(Feedback(case, verdict.status is Status.PASS, len(new)))
                if index + 1 in MILESTONES or index + 1 == count:
                    growth.append((index + 1, len(reached.points)))
    finally:
        cases.close()
    return growth


def make_table(files: list[FileCoverage]) -> Table:
    """A line for each file, and the totals."""
    table = Table(title="Coverage of torch's own Python")
    table.add_column("file")
    for name in ("lines", "of", "%", "branches", "of", "%"):
        table.add_column(name, justify="right")
    total = FileCoverage("all", 0, 0, 0, 0, [], [])
    for each in files:
        total.lines += each.lines
        total.num_lines += each.num_lines
        total.branches += each.branches
        total.num_branches += each.num_branches
    for each in [*files, total]:
        table.add_row(
            each.path,
            *(str(each.lines), str(each.num_lines), percent(each.lines, each.num_lines)),
            *(
                str(each.branches),
                str(each.num_branches),
                percent(each.branches, each.num_branches),
            ),
        )
    return table


def percent(part: int, whole: int) -> str:
    """A share, or nothing of nothing."""
    return f"{100 * part / whole:.0f}" if whole else ""


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="cases to run, in all")
    parser.add_argument(
        "--jobs", type=int, default=1, help="worlds, each with a stream of its own"
    )
    parser.add_argument(
        "--guidance", choices=get_args(Guidance), default="none", help="what chooses cases"
    )
    parser.add_argument(
        "--files",
        default="distributed/fsdp/_fully_shard/*.py",
        help="patterns of files below torch, separated by commas",
    )
    parser.add_argument(
        "--no-list", action="store_true", help="do not list the branches never reached"
    )
    args = parser.parse_args()
    reasons = load_reasons()
    config, console = replace(configure(args), coverage=1), make_console(args)
    reached = Reached()
    with World(config) as world:
        world.start()
        machine = describe_machine(world.info, config.size)
    console.print(machine_line(machine, args.seed))
    began = time.monotonic()
    shares = [args.cases // args.jobs + (job < args.cases % args.jobs) for job in range(args.jobs)]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [
            pool.submit(run_stream, config, args.seed + job, args.guidance, share, reached)
            for job, share in enumerate(shares)
            if share
        ]
        growth = [run.result() for run in runs]
    files = analyse(reached.points, args.files.split(","))
    explanations = Explanations(torch_folder(), files, reasons)
    if args.json:
        print_json(
            {
                "files": [vars(each) for each in files],
                "unreached": explanations.rows(),
                "growth": growth[0],
                "cases": args.cases,
                "guidance": args.guidance,
                "seconds": time.monotonic() - began,
                "seed": args.seed,
                "machine": machine,
            }
        )
        return explanations.exit_code
    console.print(make_table(files))
    steps = ", ".join(f"{count} cases {points}" for count, points in growth[0])
    console.print(f"points reached in all traced files, in the first world: {steps}")
    if not args.no_list:
        explanations.print_to(console)
    console.print(explanations.summary())
    return explanations.exit_code


if __name__ == "__main__":
    run_main(main)
