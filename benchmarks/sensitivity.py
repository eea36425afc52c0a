"""How small a fault is seen: what the rule for rounding leaves of planted faults in digits.

python benchmarks/sensitivity.py --faults 50 --world-size 2 --jobs 2

Each fault of ``fully_shard`` in faults/rounding.py is planted in fresh cases, a third of them with
half precision, until it has changed a bit in so many of them. Seen is what has a finding with the
fault and passes without it. torch has all mends.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import configure, look_at_machine, make_console, make_parser, print_json, run_main
from jobs import in_processes
from rich.table import Table

from fuzzshard.analysis.dtypes import is_low_precision
from fuzzshard.analysis.steering import Steering
from fuzzshard.campaign.control import Control
from fuzzshard.campaign.explain import OnMends
from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Case
from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.mending.mend import mends_for
from fuzzshard.strategies.steered import reach, steered_stream
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

FILE = Path(__file__).parent / "faults" / "rounding.py"
FAULTS = {
    "gradient_off_by_1e-5": (),
    "gradient_off_by_1e-7": (),
    "gradient_off_by_1e-9": (),
    "parameters_in_half": (),
    "reductions_in_half": (),
    "accumulation_in_half": (),
    "padding_in_norm": ("op:clip",),
}
"""The faults, and what cases have in which they do something."""

HALF = ("precision:bfloat16|precision:float16",)


def cases_for(fault: str, seed: int, world_size: int) -> Iterator[Case]:
    """Yields fresh cases of ``fully_shard`` alone, one of three with half precision."""
    streams = []
    for require in ((), (), HALF):
        steering = Steering(only=("engine:fully_shard",), require=(*FAULTS[fault], *require))
        seed += 1
        steered = reach(steering, seed, world_size=world_size, cuda=False)
        streams.append(steered_stream(seed, world_size=world_size, steered=steered))
    return itertools.chain.from_iterable(zip(*streams, strict=False))


def try_fault(task: tuple[str, int, WorldConfig, int], control: Control) -> dict[str, Any]:
    """Plants one fault in cases until it did something in so many of them."""
    fault, wanted, config, seed = task
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder, "done")
        os.environ |= {"FUZZSHARD_FAULT": fault, "FUZZSHARD_FAULT_DONE": str(done)}
        planted = WorldConfig(**{**vars(config), "preload": (str(FILE),)})
        with World(planted) as faulty, World(config) as clean:
            mends = mends_for()
            for case in cases_for(fault, seed, config.size):
                if seen["cases"] >= wanted or control.halted:
                    break
                done.unlink(missing_ok=True)
                verdict = judge(OnMends(faulty, mends), case)
                if not done.exists():
                    continue
                half = is_low_precision(case)
                found = verdict.status.is_finding
                if found and judge(OnMends(clean, mends), case).status is not Status.PASS:
                    continue
                seen.update(cases=1, half=half, seen=found, seen_in_half=found and half)
    return {"fault": fault, **{k: seen[k] for k in ("cases", "half", "seen", "seen_in_half")}}


def main() -> int:
    """Plants all faults; returns the exit code."""
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--faults", type=int, default=50, help="cases for each fault")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--jobs", type=int, default=1, help="faults planted at the same time")
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    machine = look_at_machine(config, console, args.seed)
    tasks = [(fault, args.faults, config, args.seed) for fault in args.only]
    rows = []
    for row in in_processes(try_fault, tasks, args.jobs, console):
        rows.append(row)
        console.print(", ".join(f"{name} {value}" for name, value in row.items()))
    table = Table(title="Faults that are seen", title_justify="left")
    for name in ("fault", "cases", "half", "seen", "seen_in_half"):
        table.add_column(name)
    for row in sorted(rows, key=lambda row: list(FAULTS).index(row["fault"])):
        table.add_row(*map(str, row.values()))
    if args.json:
        print_json({"rows": rows, "seed": args.seed, "machine": machine})
    else:
        console.print(table)
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
