"""What steering brings: how many of the cases are as wanted, and what each of them costs.

python benchmarks/steering.py --cases 100 --world-size 4

Times are processor time, as other processes may run. No ranks start. What is wanted is looked for
in the finished cases, by the names of their features.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from fnmatch import fnmatchcase
from typing import NamedTuple

from common import make_console, make_parser, print_json, run_main
from rich.table import Table

from fuzzshard.analysis.features import features
from fuzzshard.analysis.steering import Steering
from fuzzshard.case.case import Case
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies.steered import reach, steered_stream

PLAIN = 10
"""Cases drawn without steering for each steered one: rare features need many."""


class Wanted(NamedTuple):
    """A conjunction: what every case has, and what none has."""

    name: str
    require: tuple[str, ...]
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


WANTED = (
    Wanted("hsdp", ("mesh:hsdp",)),
    Wanted("hsdp, bf16, checkpoint", ("mesh:hsdp", "precision:bfloat16", "checkpoint:*")),
    Wanted("fsdp1 alone, hybrid", ("fsdp1:hybrid*",), only=("engine:fsdp1",)),
    Wanted("fully_shard alone, fp16", ("precision:float16",), only=("engine:fully_shard",)),
    Wanted("tied, frozen in one group", ("reuse:tied_*", "freeze:mixed_group")),
    Wanted("tied across groups, frozen", ("reuse:tied_across_groups", "freeze:*")),
    Wanted("tp, compile", ("mesh:tensor", "compile:*")),
    Wanted("hsdp with tp, accumulation", ("mesh:hsdp_tensor", "schedule:microbatches")),
    Wanted("offload, prefetch, adam", ("offload:*", "prefetch:*", "optimizer:adam*")),
    Wanted("offload, bf16, checkpoint", ("offload:*", "precision:bfloat16", "checkpoint:*")),
    Wanted("compile, checkpoint", ("compile:aot_eager", "checkpoint:*")),
    Wanted("meta device, saved with DCP", ("option:meta", "op:save_dcp")),
    Wanted("zero_redundancy, load", ("engine:zero_redundancy", "op:load*")),
    Wanted("static graph, no_sync", ("ddp:static_graph", "schedule:no_sync")),
    Wanted("list group holds a member", ("wrap:list_group_holds_member",)),
    Wanted("no reuse, linear only", (), only=("leaf:linear",), exclude=("reuse:*",)),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Shares are of one; milliseconds are for each case, or for each case as wanted."""

    name: str
    plain_share: float
    plain_ms_per_wanted: float | None
    steered_share: float
    steered_ms: float
    first_ms: float
    features_per_case: float


def is_wanted(case: Case, wanted: Wanted) -> bool:
    """Whether a case is as ``wanted`` says."""

    def has(glob: str) -> bool:
        return any(fnmatchcase(feature, glob) for feature in present)

    present = features(case)
    dimensions = {glob.partition(":")[0] for glob in wanted.only}
    alien = [
        feature
        for feature in present
        if feature.partition(":")[0] in dimensions
        and not any(fnmatchcase(feature, glob) for glob in wanted.only)
    ]
    return not alien and not any(map(has, wanted.exclude)) and all(map(has, wanted.require))


def measure(
    wanted: Wanted, seed: int, num_cases: int, world_size: int, plain: list[Case], plain_ms: float
) -> Row:
    """One row; ``plain`` are cases drawn without steering, for ``plain_ms`` each."""
    steering = Steering(require=wanted.require, only=wanted.only, exclude=wanted.exclude)
    begin = time.process_time()
    steered = reach(steering, seed, world_size=world_size, cuda=False)
    reached = time.process_time()
    stream = steered_stream(seed, world_size=world_size, steered=steered)
    cases = list(itertools.islice(stream, num_cases))
    drawn = time.process_time()
    share = statistics.mean(is_wanted(case, wanted) for case in plain)
    return Row(
        name=wanted.name,
        plain_share=share,
        plain_ms_per_wanted=plain_ms / share if share else None,
        steered_share=statistics.mean(is_wanted(case, wanted) for case in cases),
        steered_ms=1000 * (drawn - reached) / num_cases,
        first_ms=1000 * (reached - begin),
        features_per_case=statistics.mean(len(features(case)) for case in cases),
    )


def make_table(rows: list[Row], plain_ms: float) -> Table:
    """All rows, for people."""
    table = Table(title=f"Wanted cases; a plain case takes {plain_ms:.1f} ms to draw")
    table.add_column("wanted")
    for name in (
        "plain share",
        "ms/wanted",
        "steered share",
        "ms/wanted",
        "first after ms",
        "features/case",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        plain = row.plain_ms_per_wanted
        table.add_row(
            row.name,
            f"{row.plain_share:.2%}",
            "-" if plain is None else f"{plain:.0f}",
            f"{row.steered_share:.0%}",
            f"{row.steered_ms / row.steered_share:.0f}" if row.steered_share else "-",
            f"{row.first_ms:.0f}",
            f"{row.features_per_case:.0f}",
        )
    return table


def main() -> int:
    """Print the table; 1 if less than half of the steered cases of some row are as wanted."""
    parser = make_parser(__doc__, world_size=4)
    parser.add_argument("--cases", type=int, default=100, help="steered cases for each row")
    args = parser.parse_args()
    console = make_console(args)
    begin = time.process_time()
    plain = draw_cases(args.seed, PLAIN * args.cases, world_size=args.world_size)
    for case in plain:
        features(case)
    plain_ms = 1000 * (time.process_time() - begin) / len(plain)
    rows = []
    for wanted in WANTED:
        rows.append(measure(wanted, args.seed, args.cases, args.world_size, plain, plain_ms))
        console.print(f"{wanted.name}: {rows[-1].steered_share:.0%}")
    console.print(make_table(rows, plain_ms))
    if args.json:
        print_json(
            {
                "seed": args.seed,
                "world_size": args.world_size,
                "cases": args.cases,
                "plain_ms": plain_ms,
                "rows": [dataclasses.asdict(row) for row in rows],
            }
        )
    return int(any(row.steered_share < 0.5 for row in rows))


if __name__ == "__main__":
    run_main(main)
