"""What a long campaign holds on to: memory, descriptors, threads, /dev/shm and objects of every
process.

One campaign runs ``--cases`` cases; after every ``--every`` of them the coordinator and the ranks
of each world are looked at, between two cases of that world. Exits with 1 where the lower quartile
of something in the last third of the looks is more than 5 % above that in the first third: what
comes and goes is no growth. A rank that has compiled something keeps what it imported for that, so
ranks are judged by the looks at which they had imported as little as any. What the corpus
``--corpus`` knows is not shrunk again. The campaign is kept in ``--directory``, with its findings
and its journal. A campaign that is interrupted, by SIGTERM too, prints what it has.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
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

from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import Tools
from fuzzshard.case.case import Case
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INFRA, UsageError
from fuzzshard.events import CampaignFinished, CaseJudged, Event
from fuzzshard.verdict import Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.processes import fork_server

TOLERANCE = 0.05
PROBE = Path(__file__).with_name("soak_probe.py")
"""Preloaded by the ranks and unknown to the campaign, whose known findings are of stock torch."""

PIPES = "FUZZSHARD_SOAK_PIPES"
PROBE_SECONDS = 10.0
RIPE_RUNS = 30
"""Ranks that have run fewer cases than these still fill their caches; a look waits for older
ones.
"""

AFTERWARDS = 100
"""Cases after the last look is due, which waits for ripe ranks."""

CHANNELS = 2
"""Descriptors of the coordinator for each rank."""

MIB = 1 << 20

JUDGED = ("rss MiB", "descriptors", "threads")
"""What must be flat in each process; the other columns help to find out why it is not."""

ALIKE = 0.01
"""How many more modules than the fewest a rank may have imported to be compared."""

Row = dict[str, float]


class Look:
    """Takes a row of figures of the coordinator, the fork server and the ranks of one world."""

    def __init__(self, pipes: Path, size: int) -> None:
        self.pipes = [pipes / f"rank{rank}" for rank in range(size)]
        for pipe in self.pipes:
            os.mkfifo(pipe)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def take(self, cases: int, world: Watched) -> Row:
        """Between two cases of ``world``: each of its ranks waits for the next one."""
        with self._lock:
            return self._take(cases, world)

    def _take(self, cases: int, world: Watched) -> Row:
        processes = [psutil.Process(pid) for pid in world.pids]
        row: Row = {"cases": cases, "seconds": round(time.monotonic() - self._began)}
        row |= {"starts of the ranks": world.starts, "runs since the last": world.age}
        row |= _prefixed(
            "coordinator", {**_figures(psutil.Process()), "blocks": sys.getallocatedblocks()}
        )
        ranks = (
            fork_server().num_ranks
        )  # other worlds have more or fewer at any moment, and so have spares
        row["coordinator: descriptors"] -= CHANNELS * ranks
        row |= _prefixed("fork server", _figures(processes[0].parent()))
        for rank, process in enumerate(processes):
            row |= _prefixed(f"rank {rank}", {**_figures(process), **self._ask(rank, process.pid)})
        shm = [entry.stat() for entry in os.scandir("/dev/shm")]
        row |= {
            "/dev/shm files": len(shm),
            "/dev/shm MiB": sum(s.st_blocks for s in shm) * 512 / MIB,
        }
        row["processes beside ranks"] = len(psutil.Process().children(recursive=True)) - ranks
        return row

    def _ask(self, rank: int, pid: int) -> dict[str, int]:
        """What the probe in the rank counts."""
        reader = os.open(self.pipes[rank], os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(reader) as file:
            os.kill(pid, signal.SIGUSR2)
            if not select.select([reader], [], [], PROBE_SECONDS)[0]:
                raise TimeoutError(f"rank {rank} did not answer")
            os.set_blocking(reader, True)
            counts: dict[str, int] = json.loads(file.read())
            return counts


def _prefixed(process: str, figures: dict[str, Any]) -> Row:
    return {f"{process}: {name}": value for name, value in figures.items()}


def _figures(process: psutil.Process) -> dict[str, float]:
    memory = process.memory_full_info()
    return {
        "rss MiB": memory.rss / MIB,
        "pss MiB": memory.pss / MIB,
        "own MiB": memory.uss / MIB,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
    }


class Watched(World):
    """A world that is looked at between two cases, once enough of them were judged."""

    def __init__(
        self, config: WorldConfig, between: Callable[[Watched], None], *others: Any
    ) -> None:
        super().__init__(
            dataclasses.replace(config, preload=(*config.preload, str(PROBE))), *others
        )
        self.age = 0
        self.starts = 0
        self.rows: list[Row] = []
        self._between = between

    def start(self) -> None:
        """Counts it where fresh ranks start."""
        if not self.pids:
            self.age = 0
            self.starts += 1
        super().start()

    def run(
        self,
        case: Case,
        *,
        deadline: float | None = None,
        bare: bool = False,
        mends: tuple[str, ...] = (),
    ) -> Verdict:
        """Runs a case; afterwards its ranks, if they live, wait for the next one."""
        verdict = super().run(case, deadline=deadline, bare=bare, mends=mends)
        self.age += 1
        if self.pids:
            self._between(self)
        return verdict


@dataclasses.dataclass
class Soak:
    """The worlds with their rows so far, and what the campaign said."""

    look: Look
    every: int
    report: Callable[[str], None]
    worlds: list[Watched] = dataclasses.field(default_factory=list)
    judged: int = 0
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    ended: str = ""

    def make_world(self, config: WorldConfig, *others: Any) -> World:
        """A world of the campaign; ``others`` are what else a campaign gives its worlds."""
        self.worlds.append(Watched(config, self.between, *others))
        return self.worlds[-1]

    def between(self, world: Watched) -> None:
        """Called after every run, when the ranks live."""
        due = self.judged >= self.every * (len(world.rows) + 1)
        if due and world.age >= RIPE_RUNS:
            world.rows.append(self.look.take(self.judged, world))
            self.report(f"world {self.worlds.index(world)}: {line(world.rows[-1])}")

    def grown(self) -> dict[str, float]:
        """What has grown by more than the tolerance, and how much."""
        rows = sorted(
            (row for world in self.worlds for row in world.rows), key=lambda row: row["seconds"]
        )
        return {name: ratio for name, ratio in growth(rows).items() if ratio > 1 + TOLERANCE}

    def sink(self, event: Event) -> None:
        """Counts cases."""
        if isinstance(event, CaseJudged):
            self.judged += 1
            self.outcomes[event.signature or event.status] += 1
        elif isinstance(event, CampaignFinished):
            self.ended = event.reason


def growth(rows: list[Row]) -> dict[str, float]:
    """The lower quartile of the last third of the rows over that of the first, of everything that
    is judged.

    Ranks come and go, and hold what their last cases made them import and compile as well: of a
    rank those looks count at which it had imported as little as ever.
    """
    ratios = {}
    for name in rows[0] if rows else ():
        process, _, figure = name.partition(": ")
        if figure in JUDGED or name.startswith(("/dev/shm", "processes")):
            values = [row[name] for row in _alike(rows, f"{process}: modules")]
            third = max(1, len(values) // 3)
            first, last = (sorted(part)[third // 4] for part in (values[:third], values[-third:]))
            ratios[name] = last / first if first else 1.0 + last
    return ratios


def _alike(rows: list[Row], modules: str) -> list[Row]:
    """The rows with the fewest ``modules``, or all of a process that does not say how many it
    has.
    """
    if modules not in rows[0]:
        return rows
    most = (1 + ALIKE) * min(row[modules] for row in rows)
    return [row for row in rows if row[modules] <= most]


def make_table(rows: list[Row]) -> Table:
    """Figures downwards, looks to the right, the ratio of the last to the first at the end."""
    table = Table(title="Soak")
    table.add_column("figure")
    for _ in rows:
        table.add_column(justify="right")
    table.add_column("last / first", justify="right")
    for name in rows[0]:
        values = [f"{row[name]:.1f}" if "MiB" in name else f"{row[name]:.0f}" for row in rows]
        ratio = rows[-1][name] / rows[0][name] if rows[0][name] else None
        table.add_row(name, *values, "" if ratio is None else f"{ratio:.3f}")
    return table


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--cases", type=int, default=20_000, help="cases of the campaign")
    parser.add_argument(
        "--worlds", type=int, default=1, help="worlds that run cases at the same time"
    )
    parser.add_argument("--every", type=int, default=1000, help="cases between two looks")
    parser.add_argument(
        "--corpus", type=Path, help="a corpus, copied: its findings are known already"
    )
    parser.add_argument("--directory", type=Path, help="keeps the campaign; a new directory")
    args = parser.parse_args()
    console, config = make_console(args), configure(args)
    if args.directory is not None and args.directory.exists():
        raise UsageError(f"{args.directory} exists already", "name a new directory")
    with tempfile.TemporaryDirectory(prefix="fuzzshard-soak-") as folder:
        corpus = args.directory or Path(folder, "corpus")
        if args.corpus is not None:
            shutil.copytree(args.corpus, corpus)
        os.environ[PIPES] = folder
        look = Look(Path(folder), config.size)
        soak = Soak(look, args.every, console.print)
        options = CampaignOptions(
            corpus=corpus,
            max_cases=args.cases + AFTERWARDS,
            seed=args.seed,
            world_size=config.size,
            worlds=args.worlds,
            device=args.device,
        )
        run_campaign(options, soak.sink, tools=Tools(make_world=soak.make_world))
    console.print(f"{soak.judged} cases; {soak.ended}; {dict(soak.outcomes)}")
    rows = [world.rows for world in soak.worlds]
    if not any(rows):
        return EXIT_INFRA
    machine, grown = describe_machine(soak.worlds[0].info, config.size), soak.grown()
    if args.json:
        print_json({"rows": rows, "grown": grown, "machine": machine})
    else:
        console.print(machine_line({**machine, "worlds": args.worlds}, args.seed))
        longest = max(rows, key=len)
        console.print(make_table(longest if len(longest) < 9 else [longest[0], *longest[-7:]]))
    for name, ratio in grown.items():
        console.print(f"grown: {name} by {100 * (ratio - 1):.1f} %")
    return EXIT_FINDING if grown else EXIT_CLEAN


def line(row: Row) -> str:
    """One look in one line, as it is taken."""
    return ", ".join(f"{name} {value:.0f}" for name, value in row.items() if "pss" not in name)


if __name__ == "__main__":
    run_main(main)
