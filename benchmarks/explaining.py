"""How many runs, and how much time of all processes, it takes to find out which known bugs are
behind a finding.

Cases are drawn and run on torch as it is, with nothing known but the entries of a corpus. Each
that fails is explained as in a campaign, until so many known bugs were met.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import (
    configure,
    describe_machine,
    machine_line,
    make_console,
    make_parser,
    print_json,
    processor_seconds,
    run_main,
)

from fuzzshard.campaign.explain import Counting, judge_explained
from fuzzshard.campaign.known import Registry, load_known
from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.mending.mend import mends_for
from fuzzshard.strategies import case_stream
from fuzzshard.world import World


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--findings", type=int, default=40, help="known bugs to meet")
    parser.add_argument(
        "--corpus", type=Path, help="saved findings that are known; None: nothing is"
    )
    args = parser.parse_args()
    config, console, mends = configure(args), make_console(args), mends_for()
    registry = load_known(args.corpus, mends=mends) if args.corpus else Registry()
    rows: list[dict[str, Any]] = []
    cases, began = 0, time.monotonic()
    with World(config) as world:
        world.start()
        machine = describe_machine(world.info, config.size)
        console.print(machine_line(machine, args.seed))
        stream = case_stream(args.seed, world_size=config.size, cuda=config.device == "cuda")
        for case in stream:
            if len(rows) == args.findings:
                break
            cases += 1
            runs: list[int] = []
            counted = Counting(world, runs.append)
            before = processor_seconds()
            _, explained = judge_explained(
                counted, case, mends, on_mended=False, likely=registry.experience.likeliest
            )
            if explained.known:
                signature = explained.verdict.signature
                registry.experience.count(signature, explained.known)
                spent = processor_seconds() - before
                causes = explained.known
                rows.append(
                    {
                        "signature": signature,
                        "causes": causes,
                        "runs": len(runs),
                        "processor seconds": spent,
                    }
                )
                console.print(
                    f"case {cases - 1}: {len(runs)} runs, {spent:.1f} s, {', '.join(causes)}"
                )
    counts = [row["runs"] for row in rows]
    result = {
        "machine": machine,
        "seed": args.seed,
        "cases": cases,
        "seconds": time.monotonic() - began,
        "findings": rows,
        "median": statistics.median(counts),
        "mean": statistics.fmean(counts),
        "processor seconds": statistics.fmean(row["processor seconds"] for row in rows),
    }
    if args.json:
        print_json(result)
    else:
        spread = ", ".join(f"{n} runs: {times}" for n, times in sorted(Counter(counts).items()))
        console.print(
            f"{len(rows)} known bugs in {cases} cases: {result['median']:g} runs in the median, "
            f"{result['mean']:.1f} in the mean ({spread}); "
            f"{result['processor seconds']:.1f} processor seconds each"
        )
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
