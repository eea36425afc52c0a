"""In how many drawn cases each engine is named, and in how many of them its contract lets it run.

It needs no ranks: what an engine excludes follows from the case. Beside that it measures what a
case costs to draw, in milliseconds of processor time.
"""

from __future__ import annotations

import time
from collections import Counter

from common import figures_table, make_console, make_parser, print_json

from fuzzshard.case.case import ALL_ENGINES
from fuzzshard.engines.registry import not_applicable
from fuzzshard.strategies import draw_cases


def main() -> None:
    parser = make_parser(__doc__, world_size=4)
    parser.add_argument("--cases", type=int, default=400, help="cases that are drawn")
    args = parser.parse_args()
    draw_cases(args.seed + 1, 20, world_size=args.world_size)  # what is imported late
    began = time.process_time()
    cases = draw_cases(args.seed, args.cases, world_size=args.world_size)
    milliseconds = 1000 * (time.process_time() - began) / len(cases)
    drawn, run, in_vain = Counter[str](), Counter[str](), 0
    for case in cases:
        running = [name for name in case.engines if not_applicable(case, name) is None]
        drawn.update(case.engines)
        run.update(running)
        in_vain += not running
    figures = {name: f"{run[name]} of {drawn[name]}" for name in ALL_ENGINES}
    figures |= {"cases without an engine": str(in_vain), "ms a case": f"{milliseconds:.1f}"}
    make_console(args).print(figures_table(f"engines that run, of {len(cases)} cases", figures))
    if args.json:
        engines = {name: {"drawn": drawn[name], "run": run[name]} for name in ALL_ENGINES}
        print_json({"engines": engines, "without": in_vain, "ms_per_case": milliseconds})


if __name__ == "__main__":
    main()
