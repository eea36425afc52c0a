"""What the benchmarks share: options, the machine, and output for people or as one JSON object."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.reduce import SHRINK_BUDGET
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INTERRUPTED, FuzzshardError
from fuzzshard.shrink import Budget
from fuzzshard.world import World, WorldConfig


def make_parser(
    description: str | None, *, world_size: int | None = None
) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the stream of cases")
    parser.add_argument(
        "--world-size",
        type=int,
        default=world_size,
        help="ranks in a world; None: what a campaign takes here",
    )
    parser.add_argument(
        "--ranks-per-device",
        type=int,
        default=1,
        help="ranks of a world that may share a CUDA device",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where ranks run"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, nothing else"
    )
    return parser


def configure(args: argparse.Namespace) -> WorldConfig:
    """The world that a campaign with these options would use; raises UsageError where there is
    none.
    """
    return configure_worlds(args, 1)[0]


def configure_worlds(args: argparse.Namespace, worlds: int) -> tuple[WorldConfig, ...]:
    """The same for so many worlds, which take turns on the sets of CUDA devices."""
    options = CampaignOptions(
        corpus=Path(os.devnull),  # nothing is saved
        world_size=args.world_size,
        device=args.device,
        worlds=worlds,
        ranks_per_device=args.ranks_per_device,
    )
    return options.world_configs()


def add_alarm_options(parser: argparse.ArgumentParser, *, on: str) -> None:
    """The options of ``false_alarms.py`` that ``matrix.py`` hands on; ``on`` is the default."""
    parser.add_argument(
        "--on", choices=("stock", "mended"), default=on, help="the torch of first runs"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="worlds that run fresh cases at the same time"
    )


def add_shrink_seconds(parser: argparse.ArgumentParser) -> None:
    """The option that :func:`shrink_budget` reads."""
    parser.add_argument(
        "--shrink-seconds",
        type=float,
        default=SHRINK_BUDGET.max_seconds,
        help="limit for each finding",
    )


def shrink_budget(args: argparse.Namespace) -> Budget:
    """A campaign's budget for a finding, with the seconds that were asked for."""
    return dataclasses.replace(SHRINK_BUDGET, max_seconds=args.shrink_seconds)


def describe_machine(info: Mapping[str, str], world_size: int) -> dict[str, str | int]:
    """What a figure depends on; ``info`` is that of a world that has started."""
    return {"cores": len(os.sched_getaffinity(0)), "world_size": world_size, **info}


def machine_line(machine: Mapping[str, str | int], seed: int) -> str:
    """The machine and the seed in one line."""
    return ", ".join(f"{key} {value}" for key, value in (*machine.items(), ("seed", seed)))


def look_at_machine(config: WorldConfig, console: Console, seed: int) -> Mapping[str, str | int]:
    """Start ranks that say what figures depend on, and print it."""
    with World(config) as world:
        world.start()
        machine = describe_machine(world.info, config.size)
    console.print(machine_line(machine, seed))
    return machine


def processor_seconds() -> float:
    """What this process and those that it started have taken, user and system; what a process that
    has ended took, its parent says.
    """
    us = psutil.Process()
    total = 0.0
    for process in (us, *us.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += seconds_of(process)
            times = process.cpu_times()
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def seconds_of(process: psutil.Process) -> float:
    """The processor time, user and system, that a process has taken so far."""
    times = process.cpu_times()
    return times.user + times.system


def rank_seconds(world: World) -> float:
    """The same of all ranks of ``world``."""
    return sum(seconds_of(psutil.Process(pid)) for pid in world.pids)


def make_console(args: argparse.Namespace) -> Console:
    """Where everything for people goes: stdout, or stderr beside ``--json``; in a file tables get
    room.
    """
    stream = sys.stderr if args.json else sys.stdout
    width = None if stream.isatty() else 180
    return Console(file=stream, width=width, soft_wrap=True, highlight=False, markup=False)


def figures_table(title: str, figures: Mapping[str, Any]) -> Table:
    """A figure in each row, for people."""
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    return table


def print_json(result: Mapping[str, Any]) -> None:
    """The one JSON object."""
    print(json.dumps(result), flush=True)


def tell_wrong(
    wrong: Sequence[str], result: Mapping[str, Any], args: argparse.Namespace, console: Console
) -> int:
    """Says what is wrong after chaos, with the ``result`` in JSON where that was asked for, and
    returns the exit code.
    """
    for problem in wrong:
        console.print(f"WRONG: {problem}")
    console.print(f"{len(wrong)} things are wrong, seed {args.seed}")
    if args.json:
        print_json({**result, "wrong": [*wrong], "seed": args.seed})
    return EXIT_FINDING if wrong else EXIT_CLEAN


def run_main(main: Callable[[], int]) -> None:
    """Runs ``main`` and exits with what it returns; an error of fuzzshard is one line."""
    try:
        sys.exit(main())
    except FuzzshardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
