"""What NCCL's communicators cost a world, under settings of its environment variables.

Each setting gets processes of its own, since NCCL reads its environment once: the seconds until a
world is up (context and communicator), of its first case, and the mean of later ones. The cases
are the first quiet ones of a stream. On the CPU there is nothing to compare.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import msgspec
from common import configure, make_console, make_parser, print_json, run_main
from rich.table import Table

from fuzzshard.errors import EXIT_CLEAN, InfraError
from fuzzshard.strategies import case_stream
from fuzzshard.verdict import Status
from fuzzshard.world import World

SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "one channel": {"NCCL_MAX_NCHANNELS": "1"},
    "one channel, small buffers": {"NCCL_MAX_NCHANNELS": "1", "NCCL_BUFFSIZE": "65536"},
    "no memory by cuMem": {"NCCL_CUMEM_ENABLE": "0"},
}
"""Tensors of a case are a few kilobytes: they need no second channel, and no buffer of 4 MiB for
each.
"""


def measure(args: Any) -> dict[str, float]:
    """One setting, in the process that has its environment."""
    with World(configure(args)) as world:
        began = time.perf_counter()
        world.start()
        figures = {"start_s": time.perf_counter() - began}
        seconds: list[float] = []
        for case in case_stream(
            args.seed, world_size=world.config.size, cuda=world.config.device == "cuda"
        ):
            verdict = world.run(case, deadline=60.0)
            if verdict.status is Status.PASS:
                seconds.append(verdict.seconds)
            if len(seconds) == args.cases:
                break
        began = time.perf_counter()
    rest = seconds[1:]
    return figures | {
        "first_case_s": seconds[0],
        "case_s": sum(rest) / len(rest),
        "close_s": time.perf_counter() - began,
    }


def measure_elsewhere(name: str) -> dict[str, float]:
    """Runs this script again, in the environment of a setting."""
    command = [sys.executable, __file__, *sys.argv[1:], "--here"]
    done = subprocess.run(command, capture_output=True, env=os.environ | SETTINGS[name])
    if done.returncode:
        raise InfraError(f"{name} failed", done.stderr.decode(errors="replace")[-2000:])
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument(
        "--cases", type=int, default=30, help="cases that pass, under each setting"
    )
    parser.add_argument(
        "--here", action="store_true", help="measure this environment alone, as JSON"
    )
    args = parser.parse_args()
    if args.here:
        print_json(measure(args))
        return EXIT_CLEAN
    console = make_console(args)
    table = Table(title="NCCL settings")
    for column in ("setting", "start s", "first case s", "s/case", "close s"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    measured = {}
    for name in SETTINGS:
        measured[name] = measure_elsewhere(name)
        console.print(f"{name}: {measured[name]}")
        table.add_row(name, *(f"{value:.3f}" for value in measured[name].values()))
    if args.json:
        print_json(measured)
    else:
        console.print(table)
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
