"""``fuzzshard check`` over many models: hand-written ones, and small ones of ``transformers``,
``timm``, ``peft`` and ``diffusers``, built from configurations without any download.

The models are those of ``tests/check/subjects``; ones of a library that is not installed are left
out, and the title names it. Each is trained plain and parallelised, by fully_shard and DDP or by
``--parallelize``. Exits with 1 where one differs or fails: that is a fault of fuzzshard, of torch
or of the library. "not judged" is a limit: the table says which. Where a library cannot be
imported, it says why ("operator torchvision::nms does not exist": of another release of torch).
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import msgspec
from common import describe_machine, machine_line, make_console, make_parser, print_json, run_main
from rich.table import Table

TESTS = Path(__file__).parents[1] / "tests" / "check"
sys.path.insert(0, str(TESTS))
from user_models import models_in  # noqa: E402

from fuzzshard.checking.check import DEFAULT_MESHES, Checker, trainings  # noqa: E402
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, InfraError, UsageError  # noqa: E402
from fuzzshard.options import RankOptions  # noqa: E402
from fuzzshard.subject.report import Report, TrainingReport  # noqa: E402
from fuzzshard.subject.subject import (  # noqa: E402
    MeshShape,
    Subject,
    Variation,
)
from fuzzshard.world.world import SUBJECT_SECONDS  # noqa: E402

LIBRARIES = ("transformers", "timm", "peft", "diffusers")
NO_MODELS = ("unusable",)


def subjects(wanted: str) -> dict[str, Subject]:
    """The models whose names contain ``wanted``, by ``file:build``."""
    found = {}
    for path in sorted((TESTS / "subjects").glob("*.py")):
        library = path.stem.removesuffix("_models")
        installed = library not in LIBRARIES or importlib.util.find_spec(library)
        if installed and path.stem not in NO_MODELS:
            for build, subject in models_in(path).items():
                kind = build.removeprefix("build").removeprefix("_")
                found[f"{library} {kind}".strip()] = subject
    return {name: subject for name, subject in found.items() if wanted in name}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--mesh", action="append", help="repeat for several", metavar="AXES", default=[]
    )
    parser.add_argument("--engine", action="append", help="likewise", metavar="NAME", default=[])
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps of a training")
    parser.add_argument(
        "--bfloat16", action="store_true", help="compute with parameters that are cast to it"
    )
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument(
        "--parallelize", default="", help="FILE:FUNCTION that wraps every model", metavar="NAME"
    )
    args = parser.parse_args()
    models = subjects(args.only)
    if args.parallelize:
        models = {
            name: msgspec.structs.replace(subject, parallelize=args.parallelize)
            for name, subject in models.items()
        }
    if not models:
        raise UsageError(f"no model is called {args.only}", "see tests/check/subjects")
    meshes = [MeshShape.parse(text) for text in args.mesh] or DEFAULT_MESHES
    variation = Variation(param_dtype="bfloat16" if args.bfloat16 else "")
    ranks = RankOptions(device=args.device, ranks_per_device=args.ranks_per_device)
    config = ranks.config(max(mesh.size for mesh in meshes))
    console, reports, unusable = make_console(args), {}, {}
    began = time.monotonic()
    with Checker(next(iter(models.values())), config, SUBJECT_SECONDS) as checker:
        for name, subject in models.items():
            checker.subject = subject
            engines = () if args.parallelize else args.engine
            options = {"steps": args.steps, "seed": args.seed, "variation": variation}
            runs = trainings(subject, meshes, engines, **options)
            try:
                reports[name] = [checker.run(training) for training in runs]
            except (UsageError, InfraError) as error:
                unusable[name] = str(error)
            said = [str(report.outcome) for report in reports.get(name, [])]
            console.print(f"{name}: {', '.join(said) or unusable[name]}")
        machine = describe_machine({"torch": checker.torch}, config.size)
    missing = [library for library in LIBRARIES if not importlib.util.find_spec(library)]
    title = machine_line(machine, args.seed)
    title += f"; not installed: {', '.join(missing)}" if missing else ""
    console.print(_table(title, reports, unusable))
    console.print(f"{len(models)} models in {time.monotonic() - began:.0f} s")
    if args.json:
        rows = [
            {"model": name, **msgspec.to_builtins(report.brief)}
            for name, its in reports.items()
            for report in its
        ]
        print_json({**machine, "seed": args.seed, "trainings": rows, "unusable": unusable})
    done = Report(trainings=tuple(report for its in reports.values() for report in its))
    return EXIT_FINDING if unusable or done.exit_code == EXIT_FINDING else EXIT_CLEAN


def _table(
    title: str, reports: dict[str, list[TrainingReport]], unusable: dict[str, str]
) -> Table:
    table = Table(title=title)
    for column in ("model", "mesh", "engine", "outcome", "reached", "seconds", "limit or finding"):
        table.add_column(column, overflow="fold")
    for name, its in reports.items():
        for report in its:
            said = list(report.limits)
            if report.is_finding:
                said = [line.strip() for line in report.lines()][-4:]
            table.add_row(
                name,
                str(report.training.mesh),
                report.training.engine or "parallelize",
                report.outcome,
                report.reached,
                f"{report.seconds:.1f}",
                "; ".join(said) or report.message,
            )
    for name, problem in unusable.items():
        table.add_row(name, "", "", "cannot be checked", "", "", problem)
    return table


if __name__ == "__main__":
    run_main(main)
