"""How many cases that run a line which waits show that it is missing.

python benchmarks/races.py --device cuda --world-size 2 --reach 20

Each fault in --planted takes away something that orders streams, or a reference that keeps memory,
and says when its line has run. The streams are watched in cases of ``fully_shard`` until so many
have run it. On CUDA the same cases run again without that, with the delays that were drawn for
them, and with --scripts a script of each race, until one of the fault shows it. With --stock
nothing is planted: every race is printed, and what watching costs. Ctrl-C ends it with the figures
so far. On the CPU ``fully_shard`` has streams that exist in Python only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from common import (
    configure,
    describe_machine,
    machine_line,
    make_console,
    make_parser,
    print_json,
    run_main,
)
from rich.table import Table

from fuzzshard.analysis.steering import Steering
from fuzzshard.case.case import Case
from fuzzshard.errors import EXIT_CLEAN, UsageError
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts.oracles.race import Race
from fuzzshard.reproducer import check, script
from fuzzshard.reproducer.shown import Shown, shown
from fuzzshard.strategies.steered import reach, steered_stream
from fuzzshard.verdict import Finding, Status, Verdict, signature_of
from fuzzshard.world import World, WorldConfig

PLANTED = Path(__file__).parent / "faults" / "streams"
REACHED = "FUZZSHARD_PLANTED_REACHED"
PLAIN_EVERY = 8
"""With --stock, every so many cases run without being watched, too."""


class Planted(msgspec.Struct):
    """One line of ``INDEX.json``; ``require`` are features of the cases that run the line."""

    id: str
    min_world: int = 2
    difficulty: str = ""
    require: tuple[str, ...] = ()


@dataclasses.dataclass
class Row:
    """What became of one fault: cases that ran, that reached it, and that showed it."""

    id: str
    outcome: str = ""
    cases: int = 0
    reached: int = 0
    raced: int = 0
    first: int | None = None
    """How many had reached it when the first one showed it."""
    delayed: int = 0
    """Those that show wrong values by their delays."""
    seconds: float = 0.0
    says: str = ""
    script: str = ""
    """What a script of its race shows."""


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--planted", type=Path, default=PLANTED, help="folder with INDEX.json")
    parser.add_argument("--only", default="", help="ids of faults, separated by commas")
    parser.add_argument("--reach", type=int, default=20, help="cases that reach each line")
    parser.add_argument("--max-cases", type=int, default=200, help="cases for each fault")
    parser.add_argument("--until-shown", action="store_true", help="end with the first race")
    parser.add_argument("--scripts", type=Path, help="folder that gets a script of each race")
    parser.add_argument("--stock", type=int, default=0, help="run so many cases without faults")
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    rows: list[Row] = []
    if args.stock:
        figures = stock(config, args.seed, args.stock, console)
        console.print(machine_line(figures.pop("machine"), args.seed))
        console.print(line(figures))
        if args.json:
            print_json(figures)
        return EXIT_CLEAN
    index = msgspec.json.decode((args.planted / "INDEX.json").read_bytes(), type=list[Planted])
    only = set(filter(None, args.only.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        reached = Path(folder, "reached")
        os.environ[REACHED] = str(reached)  # for all ranks that this process will have
        with contextlib.suppress(KeyboardInterrupt):
            for planted in (each for each in index if not only or each.id in only):
                row = hunt(planted, config, args, reached)
                rows.append(row)
                console.print(row_text(row))
    table = Table(title="Missing orders that show", title_justify="left")
    for name in ("fault", "cases", "reached", "raced", "first", "by delays", "s", "script"):
        table.add_column(name)
    for row in rows:
        first = "" if row.first is None else str(row.first)
        figures = (row.cases, row.reached, row.raced, first, row.delayed, f"{row.seconds:.0f}")
        table.add_row(row.id, *map(str, figures), row.script)
    if args.json:
        print_json({"rows": [dataclasses.asdict(row) for row in rows], "seed": args.seed})
    else:
        console.print(table)
    return EXIT_CLEAN


def hunt(planted: Planted, config: WorldConfig, args: Any, reached: Path) -> Row:
    """Run cases with a fault until so many have reached its line."""
    row = Row(planted.id)
    if planted.min_world > config.size:
        row.outcome = f"needs {planted.min_world} ranks"
        return row
    began = time.monotonic()
    file = str(args.planted / "mutants" / f"{planted.id}.py")
    with World(dataclasses.replace(config, preload=(file,))) as world:
        try:
            for case in cases(planted.require, args.seed, config):
                if row.reached >= args.reach or row.cases >= args.max_cases:
                    break
                row.cases += 1
                reached.unlink(missing_ok=True)
                found = races(run(world, watched(case)))
                if not reached.exists():
                    continue
                row.reached += 1
                if found:
                    row.raced += 1
                    row.first = row.reached if row.first is None else row.first
                    row.says = row.says or found[0].observed
                    if args.scripts and row.script != Shown.YES:
                        row.script = write_script(case, found, Path(file), args.scripts)
                    if args.until_shown:
                        break
                if config.device == "cuda":
                    row.delayed += any(f.of_values for f in run(world, case).findings)
        except UsageError as error:
            row.outcome = str(error)
    row.seconds = time.monotonic() - began
    return row


def write_script(case: Case, found: list[Finding], fault: Path, folder: Path) -> str:
    """Keep the first script that shows one of the races by values, else the last one; return what
    it shows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said = "none can be written"
    for finding in found:
        with contextlib.suppress(UsageError):
            file = folder / f"{fault.stem}.py"
            file.write_text(script(case, signature=signature_of([finding]), finding=finding))
            result = check(file, case.mesh.size, preload=(fault,))
            said = str(shown(result, signature_of([finding])))
            file.with_suffix(".txt").write_text(result.output)
            if said == Shown.YES:
                break
    return said


def stock(config: WorldConfig, seed: int, number: int, console: Any) -> dict[str, Any]:
    """Run cases on torch with all mends, all of them watched and some also not; print figures now
    and then.
    """
    took: dict[str, float] = {}
    verdicts: dict[str, Verdict] = {}
    seconds = {"plain": 0.0, "watched": 0.0}
    raced = ran = 0

    def figures() -> dict[str, Any]:
        factor = round(seconds["watched"] / max(seconds["plain"], 1e-9), 2)
        rounded = {name: round(value, 1) for name, value in seconds.items()}
        return {"cases": ran, "raced": raced, **rounded, "factor": factor}

    with World(config) as world:
        world.start()
        machine = describe_machine(world.info, config.size)
        with contextlib.suppress(KeyboardInterrupt):
            for case in itertools.islice(cases((), seed, config), number):
                ran += 1
                hows = {"watched": watched(case)}
                if ran % PLAIN_EVERY == 0:
                    hows["plain"] = case
                for how, each in hows.items():
                    began = time.monotonic()
                    verdicts[how] = run(world, each)
                    took[how] = time.monotonic() - began
                if "plain" in hows:
                    seconds = {how: seconds[how] + took[how] for how in seconds}
                if verdicts["watched"].status is Status.INFRA:
                    console.print(f"case {ran}: {verdicts['watched'].message}")
                found = races(verdicts["watched"])
                raced += bool(found)
                for finding in found:
                    console.print(f"case {ran}: {finding.observed}; {finding.name}")
                if ran % 25 == 0:
                    console.print(line(figures()))
    return {"machine": machine, **figures()}


def line(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.items())


def cases(require: tuple[str, ...], seed: int, config: WorldConfig) -> Iterator[Case]:
    """Yield cases of ``fully_shard`` that nothing else is asked of, on several data ranks: one has
    nobody to wait for.
    """
    cuda = config.device == "cuda"
    steering = Steering(only=("engine:fully_shard",), require=require, exclude=("compile:*",))
    steered = reach(steering, seed, world_size=config.size, cuda=cuda)
    for case in steered_stream(seed, world_size=config.size, steered=steered, cuda=cuda):
        if case.observe != "losses" and case.mesh.data_size > 1:
            yield msgspec.structs.replace(case, observe="everything", engines=("fully_shard",))


def watched(case: Case) -> Case:
    """Return a case whose streams are watched, and nothing in it waits on purpose."""
    return msgspec.structs.replace(case, observe="races", delays=())


def run(world: World, case: Case) -> Verdict:
    return world.run(case, mends=mends_for())


def races(verdict: Verdict) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.oracle == Race.name]


def row_text(row: Row) -> str:
    """Return a line of what became of a fault."""
    shown = f"{row.raced} of {row.reached} that reached it raced"
    return f"{row.id}: {row.outcome or shown} in {row.cases} cases; {row.script} {row.says}"


if __name__ == "__main__":
    run_main(main)
