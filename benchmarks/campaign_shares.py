"""What a campaign does with its time: fresh cases, explaining, confirming, shrinking, and starting
ranks.

Processor seconds are those of the ranks, read four times a second and counted for what their world
does then. A wait is the time between two fresh cases that begin one after the other, anywhere.
With --stock each case first runs on torch as it is, where every known bug has to be explained.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil
from common import (
    configure,
    figures_table,
    make_console,
    make_parser,
    print_json,
    run_main,
    seconds_of,
)

from fuzzshard.campaign import worker
from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tools import TOOLS, Tools, WorldHandle
from fuzzshard.corpus.store import FINDINGS_FOLDER
from fuzzshard.errors import EXIT_CLEAN
from fuzzshard.events import CaseJudged, CaseStarted, Event, KnownCause, PhaseChanged
from fuzzshard.world import World
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.spare import Spares

SECONDS_BETWEEN_LOOKS = 0.25


class Shares:
    """Watches the worlds of one campaign, in a thread of its own."""

    def __init__(self) -> None:
        self.worlds: list[World] = []
        self.phases: dict[int, str] = defaultdict(lambda: "starting")
        self.processor = Counter[str]()
        self.counts = Counter[str]()
        self.began: list[float] = []
        self._seen: dict[int, float] = {}
        self._done = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def make_world(self, config: WorldConfig, spares: Spares) -> WorldHandle:
        """A world that is watched."""
        world = World(config, spares)
        self.worlds.append(world)
        return world

    def hear(self, event: Event) -> None:
        """Notes what a world does from now on."""
        match event:
            case PhaseChanged():
                self._look()
                self.phases[event.world] = event.phase
            case CaseStarted():
                self.began.append(event.elapsed)
            case CaseJudged():
                self.counts["cases"] += 1
            case KnownCause():
                self.counts["known bugs explained"] += 1
            case _:
                pass

    def __enter__(self) -> Shares:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._done.wait(SECONDS_BETWEEN_LOOKS):
            self._look()

    def _look(self) -> None:
        for number, world in enumerate(tuple(self.worlds)):
            for pid in world.pids:
                try:
                    seconds = seconds_of(psutil.Process(pid))
                except psutil.Error:
                    continue
                self.processor[self.phases[number]] += seconds - self._seen.get(pid, 0.0)
                self._seen[pid] = seconds


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the campaign")
    parser.add_argument("--worlds", type=int, default=1, help="worlds that run fresh cases")
    parser.add_argument(
        "--stock", action="store_true", help="run each case on torch as it is first"
    )
    parser.add_argument(
        "--corpus", type=Path, help="saved findings that are known; None: nothing is"
    )
    args = parser.parse_args()
    config, console, shares = configure(args), make_console(args), Shares()
    if args.stock:
        worker.STOCK_ONE_IN = 1
        worker.STOCK_TURN = 0
    with tempfile.TemporaryDirectory(prefix="fuzzshard-shares-") as temporary, shares:
        corpus = Path(temporary)
        if args.corpus:
            shutil.copytree(args.corpus, corpus / FINDINGS_FOLDER)
        options = CampaignOptions(
            corpus=corpus,
            device=config.device,
            world_size=config.size,
            worlds=args.worlds,
            seed=args.seed,
            max_time=60 * args.minutes,
        )
        run_campaign(options, shares.hear, tools=Tools(shares.make_world, TOOLS.cases))
    total = shares.processor.total()
    waits = sorted(after - before for before, after in itertools.pairwise(shares.began))
    figures: dict[str, Any] = {
        **shares.counts,
        "processor seconds": total,
        **{f"% {phase}": 100 * spent / total for phase, spent in shares.processor.most_common()},
        "longest wait for a fresh case, s": waits[-1],
        "waits of more than 20 s": sum(wait > 20 for wait in waits),
    }
    if args.json:
        print_json(figures)
    else:
        console.print(figures_table(f"{args.minutes:g} minutes", figures))
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
