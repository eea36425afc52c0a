"""What it costs to find planted bugs, by importance sampling: the share of the drawn cases that
have what a bug needs, times the share of these that show it.

A hunt that ends at its first finding says little: equal trees differ by a factor of two. Here
--draw cases are drawn, which costs nothing, and the first --run of those with the features of a
bug run with it. The folder has a file FEATURES.json: for the id of each bug, the globs of features
that every case has which can show it. What the bug costs is the processor time of the ranks for a
case, as the first --sample cases take it, divided by both shares. Intervals are of 68 %.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from bug_worlds import BugWorld, StockWorld, mends_beside
from common import (
    configure,
    describe_machine,
    machine_line,
    make_console,
    make_parser,
    print_json,
    run_main,
)
from hunt_rows import mutants, read_index
from rich.table import Table
from throughput import timed

from fuzzshard.analysis.feature_words import matching
from fuzzshard.analysis.features import features
from fuzzshard.campaign.explain import OnMends
from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Case
from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.mending.mend import mends_for
from fuzzshard.strategies.steered import steered_stream
from fuzzshard.world import World, WorldConfig

FEATURES_FILE = "FEATURES.json"


@dataclasses.dataclass(frozen=True)
class Share:
    """So many of so many."""

    part: int
    whole: int

    @property
    def value(self) -> float:
        """The share, never 0: what was not met may be rarer than one more try would show."""
        return max(self.part, 0.5) / self.whole

    @property
    def variance_of_log(self) -> float:
        """By the delta method."""
        return (1 - self.value) / (self.value * self.whole)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one bug: the share of cases with its features, and of these that show it."""

    id: str
    present: Share
    seen: Share
    seconds: float

    @property
    def to_find(self) -> float:
        """Processor seconds in the mean."""
        return self.seconds / (self.present.value * self.seen.value)

    @property
    def factor(self) -> float:
        """The interval goes from the cost divided by it to the cost times it."""
        return math.exp(math.sqrt(self.present.variance_of_log + self.seen.variance_of_log))


def with_features(
    cases: Sequence[tuple[Case, frozenset[str]]], globs: Sequence[str]
) -> list[Case]:
    """Those that have a feature for each of the ``globs``."""
    wanted = [matching(glob) for glob in globs]
    return [case for case, present in cases if all(each & present for each in wanted)]


def seconds_of(world: World, cases: Sequence[Case]) -> Iterator[float]:
    """The processor time of each case on torch with all mends, but for those of new ranks."""
    mended = OnMends(world, mends_for())
    for case in cases:
        _, spent = timed(world, functools.partial(judge, mended, case))
        if spent is not None:
            yield spent


def num_shown(bug: Path, config: WorldConfig, stock: World, cases: Sequence[Case]) -> int:
    """How many of the ``cases`` show ``bug``: they fail with it, and pass without."""
    mends = mends_beside(bug, mends_for())
    with World(dataclasses.replace(config, preload=(str(bug),))) as world:
        buggy = BugWorld(world, StockWorld(stock, mends), mends)
        return sum(judge(buggy, case).status.is_finding for case in cases)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--planted", type=Path, required=True, help="folder with INDEX.json and mutants/"
    )
    parser.add_argument("--features", type=Path, help=f"file in place of its {FEATURES_FILE}")
    parser.add_argument("--draw", type=int, default=2000, help="cases that are drawn")
    parser.add_argument("--run", type=int, default=40, help="of these, for each bug")
    parser.add_argument("--sample", type=int, default=100, help="cases whose time is taken")
    parser.add_argument("--only", help="ids of the bugs, separated by commas")
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    needs = json.loads((args.features or args.planted / FEATURES_FILE).read_text())
    bugs = read_index(args.planted, frozenset(args.only.split(",")) if args.only else None)
    stream = steered_stream(args.seed, world_size=config.size)
    drawn = [*itertools.islice(stream, args.draw)]
    cases = [(case, features(case)) for case in drawn]
    costs: list[Cost] = []
    with World(config) as stock:
        stock.start()
        machine = describe_machine(stock.info, config.size)
        console.print(machine_line(machine, args.seed))
        seconds = statistics.fmean(seconds_of(stock, drawn[: args.sample]))
        for bug in (bug for bug in bugs if bug.id in needs):
            fitting = with_features(cases, needs[bug.id])
            chosen = fitting[: args.run]
            shown = num_shown(mutants(args.planted) / f"{bug.id}.py", config, stock, chosen)
            present, seen = Share(len(fitting), len(drawn)), Share(shown, max(1, len(chosen)))
            costs.append(Cost(bug.id, present, seen, seconds))
            console.print(
                f"{bug.id}: {len(fitting)} of {len(drawn)} have its features, {shown} of "
                f"{len(chosen)} show it"
            )
    mean = math.exp(statistics.fmean(math.log(cost.to_find) for cost in costs))
    spread = math.exp(math.sqrt(sum(math.log(cost.factor) ** 2 for cost in costs)) / len(costs))
    if args.json:
        rows = {
            cost.id: {
                "present": cost.present.value,
                "seen": cost.seen.value,
                "seconds": cost.to_find,
                "factor": cost.factor,
            }
            for cost in costs
        }
        figures = {"seconds_of_a_case": seconds, "geometric_mean": mean, "factor": spread}
        print_json({"machine": machine, "seed": args.seed, "bugs": rows, **figures})
        return EXIT_CLEAN
    table = Table(title=f"Processor seconds to find; a case takes {seconds:.2f} s")
    for name in ("bug", "have its features", "of these show it", "seconds", "interval"):
        table.add_column(name, justify="left" if name == "bug" else "right")
    for cost in costs:
        table.add_row(
            cost.id,
            f"{100 * cost.present.value:.1f} %",
            f"{100 * cost.seen.value:.0f} %",
            f"{cost.to_find:.0f}",
            f"{cost.to_find / cost.factor:.0f} to {cost.to_find * cost.factor:.0f}",
        )
    console.print(table)
    console.print(f"geometric mean {mean:.0f} s ({mean / spread:.0f} to {mean * spread:.0f})")
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
