"""What the harness costs: the campaign against a bare loop, and against fresh processes for each
case.

All three train the same cases. The bare loop runs cases that were drawn before, in one world, and
neither observes nor judges. The campaign draws, observes and judges. Cases with a finding are left
out of all three: confirming one is work on a result. Bare loop and campaign take turns, so that
noise of the machine hits both. The first case of every turn is not timed: its world is new. The
same in processor seconds of all processes is "processor_campaign_over_bare", which other work on
the machine changes less.

With --worlds 1,2,4 campaigns of as many worlds are compared instead (throughput_worlds.py).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from common import (
    configure,
    figures_table,
    look_at_machine,
    make_console,
    make_parser,
    print_json,
    processor_seconds,
    rank_seconds,
    run_main,
)
from throughput_worlds import Scaled, efficiency, time_worlds
from throughput_worlds import make_table as make_worlds_table

from fuzzshard.campaign.drawing import drawn_cases
from fuzzshard.campaign.judge import judge
from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import Tools
from fuzzshard.case.case import Case
from fuzzshard.errors import EXIT_CLEAN, InfraError
from fuzzshard.events import CaseJudged, Event
from fuzzshard.strategies.steered import Steered, steered_stream
from fuzzshard.verdict import Status
from fuzzshard.world import Spares, World, WorldConfig

T = TypeVar("T")

QUIET = (Status.PASS, Status.REJECTED)
"""Verdicts after which a world goes on; the same engines train with the harness and without."""


@dataclasses.dataclass
class Rate:
    """Cases, the seconds that they took together, and those of all processors."""

    cases: int = 0
    seconds: float = 0.0
    processor: float = 0.0

    def add(self, cases: int, seconds: float, processor: float = 0.0) -> None:
        """Adds one turn."""
        self.cases += cases
        self.seconds += seconds
        self.processor += processor

    @property
    def per_second(self) -> float:
        """Cases per second over all turns."""
        return self.cases / self.seconds


@dataclasses.dataclass(frozen=True)
class Counts:
    """How much is measured; ``chunk`` cases make one turn."""

    cases: int
    chunk: int
    spawn_cases: int
    respawns: int


def turns(cases: int, chunk: int) -> list[int]:
    """The sizes of the turns; a rest of fewer than two cases, which has nothing to time, is left
    out.
    """
    sizes = [min(chunk, cases - done) for done in range(0, cases, chunk)]
    return [size for size in sizes if size > 1]


def timed(world: World, run: Callable[[], T]) -> tuple[T, float | None]:
    """What ``run`` returns, and the processor time that the ranks of ``world`` took for it; None
    where these are new ones by then, which begin with what the old ones had done.
    """
    began, pids = rank_seconds(world), world.pids
    result = run()
    return result, rank_seconds(world) - began if world.pids == pids else None


def comparable_cases(
    world: World, seed: int, count: int, ranks: Rate
) -> tuple[list[Case], set[Case]]:
    """The first ``count`` quiet cases of a stream, and the others that came before the last of
    them.

    Adds the quiet cases to ``ranks``, with the seconds of :func:`rank_seconds`, but for the first
    one and those that new ranks ran.
    """
    quiet: list[Case] = []
    loud: set[Case] = set()
    world.start()
    for case in steered_stream(
        seed, world_size=world.config.size, cuda=world.config.device == "cuda"
    ):
        verdict, spent = timed(world, functools.partial(judge, world, case))
        if verdict.status in QUIET:
            if quiet and spent is not None:
                ranks.add(1, spent)
            quiet.append(case)
        else:
            loud.add(case)
        if len(quiet) == count:
            break
    return quiet, loud


def time_bare(config: WorldConfig, cases: list[Case]) -> tuple[float, float]:
    """Seconds for all ``cases`` but the first, trained without harness in one world, and those of
    processors.
    """
    with World(config) as world:
        world.run(cases[0], bare=True)
        began, processor = time.perf_counter(), processor_seconds()
        for case in cases[1:]:
            world.run(case, bare=True)
        return time.perf_counter() - began, processor_seconds() - processor


def time_campaign(
    config: WorldConfig, seed: int, count: int, loud: set[Case]
) -> tuple[float, float]:
    """Seconds between the verdicts on the first and the last case of a campaign on the same cases,
    and those of processors.

    Cases are drawn ahead in a process of their own, which shares the machine with the ranks.
    """
    elapsed: list[float] = []
    processor: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, CaseJudged):
            elapsed.append(event.elapsed)
            if len(elapsed) in (1, count):
                processor.append(processor_seconds())

    def stream(seed: int, *, world_size: int, steered: Steered, cuda: bool) -> Iterator[Case]:
        for case in drawn_cases(seed, world_size=world_size, steered=steered, cuda=cuda):
            if case not in loud:
                yield case

    with tempfile.TemporaryDirectory(prefix="fuzzshard-throughput-") as corpus:
        options = CampaignOptions(
            corpus=Path(corpus),
            seed=seed,
            max_cases=count,
            world_size=config.size,
            device=config.device,
            shrink=False,
        )
        run_campaign(options, listen, tools=Tools(cases=stream))
    if len(elapsed) != count:
        raise InfraError(
            f"the campaign judged {len(elapsed)} of {count} cases", "run it by itself"
        )
    return elapsed[-1] - elapsed[0], processor[-1] - processor[0]


def time_spawn(config: WorldConfig, cases: list[Case]) -> float:
    """Seconds for all ``cases``, each in fresh processes."""
    script = Path(__file__).with_name("spawn_per_case.py")
    options = ["--world-size", str(config.size), "--device", config.device]
    done = subprocess.run(
        [sys.executable, str(script), *options],
        input=msgspec.json.encode(cases),
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise InfraError("spawn_per_case.py failed", done.stderr.decode(errors="replace")[-2000:])
    return sum(msgspec.json.decode(done.stdout, type=list[float]))


def time_respawns(config: WorldConfig, case: Case, repetitions: int) -> list[float]:
    """Seconds from the death of a rank between two cases to the next verdict, as a campaign sees
    them.
    """
    seconds = []
    with Spares() as spares, World(config, spares) as world:
        for _ in range(repetitions):
            world.run(case)
            began = time.perf_counter()
            os.kill(world.pids[-1], signal.SIGKILL)
            while judge(world, case).status not in QUIET:
                pass
            seconds.append(time.perf_counter() - began)
    return seconds


def measure(
    config: WorldConfig, seed: int, counts: Counts, report: Callable[[str], None]
) -> dict[str, Any]:
    """All figures; ``report`` is told what was measured."""
    bare, campaign, ranks = Rate(), Rate(), Rate()
    sample: list[Case] = []
    num_loud = 0
    for turn, size in enumerate(turns(counts.cases, counts.chunk)):
        with World(config) as world:
            cases, loud = comparable_cases(world, seed + turn, size, ranks)
        num_loud += len(loud)
        sample = sample or cases[: counts.spawn_cases]
        quiet = cases[0]
        if turn % 2:
            campaign.add(size - 1, *time_campaign(config, seed + turn, size, loud))
            bare.add(size - 1, *time_bare(config, cases))
        else:
            bare.add(size - 1, *time_bare(config, cases))
            campaign.add(size - 1, *time_campaign(config, seed + turn, size, loud))
        report(
            f"bare loop {bare.per_second:.2f}, campaign {campaign.per_second:.2f} cases/s so far"
        )
    figures: dict[str, Any] = {
        "campaign_over_bare": campaign.per_second / bare.per_second,
        "processor_campaign_over_bare": bare.processor / campaign.processor,
        "bare_cases_per_s": bare.per_second,
        "campaign_cases_per_s": campaign.per_second,
        "cases": bare.cases,
        "left_out": num_loud,
    }
    if ranks.cases:
        figures["rank_cpu_ms"] = 1000 * ranks.seconds / ranks.cases
    if counts.spawn_cases:
        spawn = Rate()
        spawn.add(len(sample), time_spawn(config, sample))
        report(f"fresh processes {spawn.per_second:.3f} cases/s")
        figures["campaign_over_spawn"] = campaign.per_second / spawn.per_second
        figures["spawn_cases_per_s"] = spawn.per_second
    if counts.respawns:
        respawns = time_respawns(config, quiet, counts.respawns)
        figures |= {"respawn_s": statistics.median(respawns), "respawn_max_s": max(respawns)}
    return figures


def measure_worlds(
    config: WorldConfig, seed: int, numbers: list[int], count: int, report: Callable[[str], None]
) -> list[Scaled]:
    """A campaign for each number of worlds; ``report`` is told of each."""
    with World(config) as world:
        cases, _ = comparable_cases(world, seed, count, Rate())
    measured = []
    for number in numbers:
        measured.append(time_worlds(config, seed, number, cases))
        report(f"{number} worlds: {measured[-1].per_second:.2f} cases/s")
    return measured


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument(
        "--cases",
        type=int,
        default=200,
        help="cases for the bare loop, for the campaign, for each world",
    )
    parser.add_argument("--chunk", type=int, default=50, help="cases in one turn of either")
    parser.add_argument("--spawn-cases", type=int, default=8, help="cases in fresh processes")
    parser.add_argument("--respawns", type=int, default=5, help="ranks killed; the median counts")
    parser.add_argument(
        "--worlds",
        type=lambda text: [int(number) for number in text.split(",")],
        help="compare campaigns of these numbers of worlds, such as 1,2,4",
    )
    args = parser.parse_args()
    config, console = configure(args), make_console(args)
    machine = look_at_machine(config, console, args.seed)
    if args.worlds:
        measured = measure_worlds(config, args.seed, args.worlds, args.cases, console.print)
        if args.json:
            rows = [
                {**dataclasses.asdict(each), "efficiency": efficiency(each, measured[0])}
                for each in measured
            ]
            print_json({"worlds": rows, "seed": args.seed, "machine": machine})
        else:
            console.print(make_worlds_table(measured))
        return EXIT_CLEAN
    counts = Counts(args.cases, args.chunk, args.spawn_cases, args.respawns)
    figures = measure(config, args.seed, counts, console.print)
    if args.json:
        print_json({**figures, "seed": args.seed, "machine": machine})
    else:
        console.print(figures_table("Throughput", figures))
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
