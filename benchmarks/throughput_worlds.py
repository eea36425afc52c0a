"""How the cases per second of a campaign grow with its number of worlds; used by throughput.py.

Every world of every campaign runs the same cases, so that all campaigns do the same work per
world; for each case that runs one is drawn, as always. No case is handed out before all worlds are
up. Counted is what happens after every world has begun its second case and before the first world
begins its last one. Whatever is found is followed up by a further world, which begins no cases.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from common import seconds_of
from rich.table import Table

from fuzzshard.campaign.drawing import drawn_cases
from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import Tools
from fuzzshard.case.case import Case
from fuzzshard.errors import InfraError
from fuzzshard.events import CaseStarted, Event, WorldStarted
from fuzzshard.strategies.steered import Steered
from fuzzshard.world import Spares, World, WorldConfig


@dataclasses.dataclass(frozen=True)
class Scaled:
    """One campaign. ``busy`` is the share of one core that the coordinator uses; near 1 its
    threads wait.

    Processor times are milliseconds per case: of the coordinator, and of all ranks together.
    """

    worlds: int
    cases: int
    per_second: float
    coordinator_ms: float
    ranks_ms: float
    busy: float


class _Meter:
    """Listens to a campaign: opens the gate of its cases, and keeps when these began and what
    they cost.
    """

    def __init__(self, worlds: int, total: int) -> None:
        self.gate = threading.Event()
        self.running: list[World] = []
        self._num_worlds = worlds
        self._total = total
        self._num_up = 0
        self._began: dict[int, list[float]] = {}
        self._marks: list[tuple[float, float, float]] = []

    def make_world(self, config: WorldConfig, spares: Spares) -> World:
        world = World(config, spares)
        self.running.append(world)
        return world

    def listen(self, event: Event) -> None:
        if isinstance(event, WorldStarted):
            self._num_up += 1
            if self._num_up == self._num_worlds:
                self._mark()
                self.gate.set()
        if isinstance(event, CaseStarted):
            self._began.setdefault(event.world, []).append(event.elapsed)
            if sum(map(len, self._began.values())) == self._total:
                self._mark()

    def _mark(self) -> None:
        ranks = 0.0
        for pid in [pid for world in self.running for pid in world.pids]:
            try:
                ranks += seconds_of(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        self._marks.append((time.monotonic(), time.process_time(), ranks))

    def result(self) -> Scaled:
        began = [moment for moments in self._began.values() for moment in moments]
        several = sum(len(moments) > 1 for moments in self._began.values())
        if len(began) != self._total or several != self._num_worlds:
            raise InfraError(
                f"{several} of {self._num_worlds} worlds ran several of {len(began)} cases, of "
                f"{self._total}",
                "run it by itself, with more cases",
            )
        begin = max(moments[1] for moments in self._began.values())
        end = min(moments[-1] for moments in self._began.values())
        counted = sum(begin < moment <= end for moment in began)
        (opened, coordinator, ranks), (closed, coordinator_after, ranks_after) = self._marks
        timed = self._total - self._num_worlds
        return Scaled(
            worlds=self._num_worlds,
            cases=counted,
            per_second=counted / (end - begin),
            coordinator_ms=1000 * (coordinator_after - coordinator) / timed,
            ranks_ms=1000 * (ranks_after - ranks) / timed,
            busy=(coordinator_after - coordinator) / (closed - opened),
        )


def time_worlds(config: WorldConfig, seed: int, worlds: int, cases: list[Case]) -> Scaled:
    """A campaign that runs ``cases``, of which none is a finding, in each of ``worlds``."""
    meter = _Meter(worlds, worlds * len(cases))

    def stream(seed: int, *, world_size: int, steered: Steered, cuda: bool) -> Iterator[Case]:
        drawn = drawn_cases(seed, world_size=world_size, steered=steered, cuda=cuda)
        for number, _ in enumerate(drawn):
            meter.gate.wait()
            yield cases[number // worlds % len(cases)]

    with TemporaryDirectory(prefix="fuzzshard-throughput-") as corpus:
        options = CampaignOptions(
            corpus=Path(corpus),
            seed=seed,
            max_cases=worlds * len(cases),
            world_size=config.size,
            worlds=worlds,
            device=config.device,
            shrink=False,
        )
        run_campaign(options, meter.listen, tools=Tools(make_world=meter.make_world, cases=stream))
    return meter.result()


def make_table(measured: list[Scaled]) -> Table:
    """Cases per second by number of worlds, and the share of what as many times the first row
    would be.
    """
    table = Table(title="Worlds")
    for name in (
        "worlds",
        "cases/s",
        "efficiency",
        "coordinator ms/case",
        "ranks ms/case",
        "coordinator busy",
    ):
        table.add_column(name, justify="right")
    for each in measured:
        table.add_row(
            str(each.worlds),
            f"{each.per_second:.2f}",
            f"{efficiency(each, measured[0]):.2f}",
            f"{each.coordinator_ms:.2f}",
            f"{each.ranks_ms:.1f}",
            f"{each.busy:.0%}",
        )
    return table


def efficiency(many: Scaled, few: Scaled) -> float:
    """Cases per second and world, beside those of a campaign with ``few`` worlds."""
    return many.per_second / many.worlds / (few.per_second / few.worlds)
