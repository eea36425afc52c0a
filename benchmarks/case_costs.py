"""Which features of cases cost how much: in how many cases each is, and how much of the ranks'
processor time these cases take.

A case has many features, so what a row says is no cause by itself.
"""

from __future__ import annotations

import functools
from collections import Counter
from fnmatch import fnmatchcase

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
from throughput import timed

from fuzzshard.analysis.features import features
from fuzzshard.campaign.explain import OnMends
from fuzzshard.campaign.judge import judge
from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.mending.mend import mends_for
from fuzzshard.strategies.steered import steered_stream
from fuzzshard.world import World


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cases", type=int, default=300, help="cases to run")
    parser.add_argument("--of", default="*", help="glob of the features to list")
    parser.add_argument("--least", type=float, default=3.0, help="percent of the cases, at least")
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    number, seconds = Counter[str](), Counter[str]()
    ran, total = 0, 0.0
    with World(config) as world:
        world.start()
        mended = OnMends(world, mends_for())
        machine = describe_machine(world.info, config.size)
        console.print(machine_line(machine, args.seed))
        stream = steered_stream(args.seed, world_size=config.size, cuda=config.device == "cuda")
        for case in stream:
            if ran == args.cases:
                break
            _, spent = timed(world, functools.partial(judge, mended, case))
            if spent is None:
                continue
            ran, total = ran + 1, total + spent
            for name in features(case):
                number[name] += 1
                seconds[name] += spent
    figures = {
        name: {"% of cases": 100 * number[name] / ran, "% of time": 100 * seconds[name] / total}
        for name in number
        if fnmatchcase(name, args.of) and 100 * number[name] / ran >= args.least
    }
    if args.json:
        print_json({"machine": machine, "cases": ran, "seconds": total, "features": figures})
        return EXIT_CLEAN
    ordered = sorted(figures.items(), key=lambda row: -row[1]["% of time"] / row[1]["% of cases"])
    rows = {
        name: f"{row['% of cases']:5.1f} %  {row['% of time']:5.1f} %  "
        f"{row['% of time'] / row['% of cases']:.2f}"
        for name, row in ordered
    }
    console.print(figures_table(f"{ran} cases, {total:.0f} s: cases, time, ratio", rows))
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
