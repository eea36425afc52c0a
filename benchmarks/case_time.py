"""Where the time of a case goes on rank 0, and what the device needs of it at least.

Quiet cases run as in a campaign, once and again: the first time a GPU loads kernels, and NCCL
makes communicators. Then they train without harness ("bare"), and on CUDA both once more while a
profiler counts calls of CUDA and what kernels take. The floor is the larger of what the calls and
what the kernels of a bare run take. Milliseconds for each case, on the CPU of processor time;
"all" is what the coordinator waited.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from case_time_probe import FOLDER, PROFILE
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

from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.mending.mend import mends_for
from fuzzshard.strategies.steered import steered_stream
from fuzzshard.verdict import Status
from fuzzshard.world import World

PROBE = Path(__file__).with_name("case_time_probe.py")
RUNS = {"first": (False, False), "again": (False, False), "bare": (True, False)}
PROFILED = {"again, profiled": (False, True), "bare, profiled": (True, True)}
"""How cases run: without harness, and with a profiler."""


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--cases", type=int, default=20, help="quiet cases to run")
    args = parser.parse_args()
    config, console, mends = configure(args), make_console(args), mends_for()
    on_cuda = config.device == "cuda"
    modes = RUNS | (PROFILED if on_cuda else {})
    sums = {name: Counter[str]() for name in modes}
    counts = {name: Counter[str]() for name in sums}
    cases = 0
    with tempfile.TemporaryDirectory(prefix="fuzzshard-case-time-") as temporary:
        folder = Path(temporary)
        os.environ[FOLDER] = temporary
        lines = folder / "cases.jsonl"
        with World(dataclasses.replace(config, preload=(str(PROBE),))) as world:
            world.start()
            machine = describe_machine(world.info, config.size)
            console.print(machine_line(machine, args.seed))
            for case in steered_stream(args.seed, world_size=config.size, cuda=on_cuda):
                if cases == args.cases:
                    break
                runs: list[tuple[str, float]] = []
                lines.write_text("")
                for name, (bare, profiled) in modes.items():
                    (folder / PROFILE).touch() if profiled else (folder / PROFILE).unlink(True)
                    began = time.perf_counter()
                    verdict = world.run(case, bare=bare, mends=mends)
                    if verdict.status not in (Status.PASS, Status.REJECTED):
                        break
                    runs.append((name, time.perf_counter() - began))
                if len(runs) != len(sums):
                    continue
                world.run(case, bare=True, mends=mends)  # the last one has written its line by now
                cases += 1
                noted = map(json.loads, lines.read_text().splitlines())
                for (name, seconds), seen in zip(runs, noted, strict=False):
                    sums[name].update(seen["seconds"] | {"all": seconds})
                    counts[name].update(seen["counts"])
    bare = sums[[*modes][-1]]
    kernels = bare["nccl"] + bare["other kernels"]
    figures: dict[str, Any] = {
        "machine": machine,
        "seed": args.seed,
        "cases": cases,
        "ms": {n: {k: 1000 * v / cases for k, v in each.items()} for n, each in sums.items()},
        "counts": {n: {k: v / cases for k, v in each.items()} for n, each in counts.items()},
        "floor_ms": 1000 * max(bare["calls of CUDA"], kernels) / cases,
        "nccl_ms": 1000 * bare["nccl"] / cases,
    }
    if args.json:
        print_json(figures)
        return EXIT_CLEAN
    table = Table("", *sums, title=f"{cases} cases: ms for each, and how often")
    for row in dict.fromkeys(key for each in (*sums.values(), *counts.values()) for key in each):
        cells = (
            f"{figures['ms'][name].get(row, 0.0):.1f} ({figures['counts'][name].get(row, 0):.0f})"
            for name in sums
        )
        table.add_row(row, *cells)
    console.print(table)
    console.print(f"floor {figures['floor_ms']:.1f} ms, NCCL {figures['nccl_ms']:.1f} ms")
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
