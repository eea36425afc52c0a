"""What tracing torch and the second run of a relation cost: the same cases with and without,
taking turns.

Each case runs in a plain world, in one that traces as a campaign with --guidance coverage does,
and in one that traces every case; and without its relation in the plain world, if it has one.
Which comes first changes from case to case. Cases with a finding are left out: worlds lose their
ranks over them.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from common import (
    configure,
    describe_machine,
    figures_table,
    machine_line,
    make_console,
    make_parser,
    print_json,
    run_main,
)
from msgspec.structs import replace as changed
from throughput import QUIET

from fuzzshard.case.case import Case
from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.strategies import case_stream
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.config import SAMPLED_COVERAGE

PLAIN, SAMPLED, TRACED, UNRELATED = "plain", "coverage", "coverage of every case", "no relation"
WARM_UP = 4
"""Cases of every world that are not timed: its first ones make groups and fill caches."""


def measure(
    config: WorldConfig, seed: int, count: int, report: Callable[[str], None]
) -> list[dict[str, float]]:
    """For every timed case the seconds by what it ran with."""
    worlds = {
        PLAIN: config,
        SAMPLED: replace(config, coverage=SAMPLED_COVERAGE),
        TRACED: replace(config, coverage=1),
    }
    timed: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(World(each)) for name, each in worlds.items()}
        stream = case_stream(seed, world_size=config.size, cuda=config.device == "cuda")
        for number, case in enumerate(stream):
            seconds = run_case(running, case, number)
            if seconds is not None and number >= WARM_UP:
                timed.append(seconds)
                if len(timed) % 50 == 0:
                    so_far = ", ".join(
                        f"{name} {ratio:.3f}" for name, ratio in ratios(timed).items()
                    )
                    report(f"{len(timed)} cases: {so_far}")
            if len(timed) == count:
                break
    return timed


def run_case(worlds: dict[str, World], case: Case, number: int) -> dict[str, float] | None:
    """The seconds of one case by what it ran with; None where something is wrong with it."""
    runs: list[tuple[str, World, Case]] = [(name, world, case) for name, world in worlds.items()]
    if case.relation is not None:
        runs.append((UNRELATED, worlds[PLAIN], changed(case, relation=None)))
    turn = number % len(runs)
    seconds: dict[str, float] = {}
    for name, world, each in runs[turn:] + runs[:turn]:
        verdict = world.run(each)
        if verdict.status not in QUIET:
            return None
        seconds[name] = verdict.seconds
    return {UNRELATED: seconds[PLAIN], **seconds}


def ratios(timed: Sequence[dict[str, float]]) -> dict[str, float]:
    """How much longer all cases together take, as a factor; of the relation, over the run
    without.
    """
    total = {name: sum(each[name] for each in timed) for name in timed[0]}
    return {
        SAMPLED: total[SAMPLED] / total[PLAIN],
        TRACED: total[TRACED] / total[PLAIN],
        "relation": total[PLAIN] / total[UNRELATED],
    }


def figures(timed: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Totals, and medians of the ratios of single cases, which a hiccup of the machine does not
    move.
    """
    related = [each for each in timed if each[UNRELATED] != each[PLAIN]]
    traced = statistics.median(each[TRACED] / each[PLAIN] for each in timed)
    return {
        f"slowdown by {SAMPLED}, by the median of a traced case": 1
        + (traced - 1) / SAMPLED_COVERAGE,
        **{f"slowdown by {name}": value for name, value in ratios(timed).items()},
        f"median slowdown by {SAMPLED}": statistics.median(e[SAMPLED] / e[PLAIN] for e in timed),
        f"median slowdown by {TRACED}": traced,
        "median slowdown by the relation, of a case that has one": (
            statistics.median(e[PLAIN] / e[UNRELATED] for e in related) if related else None
        ),
        "share of cases with a relation": len(related) / len(timed),
        "seconds per case, plain": statistics.mean(each[PLAIN] for each in timed),
        "traced cases of a campaign": f"1 in {SAMPLED_COVERAGE}",
        "cases": len(timed),
    }


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--cases", type=int, default=200, help="cases that are timed")
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    with World(config) as world:
        world.start()
        machine = describe_machine(world.info, config.size)
    console.print(machine_line(machine, args.seed))
    values = figures(measure(config, args.seed, args.cases, console.print))
    if args.json:
        print_json({**values, "seed": args.seed, "machine": machine})
    else:
        console.print(figures_table("Slowdown", values))
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
