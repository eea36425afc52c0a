"""Runs a fleet with a planted fault on Ray nodes of this machine, while processes are killed with
-9 and nodes come and go.

Ranks, campaigns, agents, raylets and the head are killed at random; nodes are added and removed.
At the end the fleet is left alone until the planted fault is in its corpus, and is stopped. Then
the head's figures are held against the journals of all nodes, those against what the campaigns
said, the corpus against the findings of all nodes, and no process may be left. All the time
nothing of fuzzshard may listen for connections. Exit code 1 if anything is wrong. Needs Ray.

For example, as a test of a release, on 32 cores:
  python benchmarks/fleet_chaos.py --time 20m --nodes 4
  python benchmarks/fleet_chaos.py --time 20m --nodes 4 --world-nodes 2
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from case_runs import case_runs
from common import make_console, make_parser, run_main, tell_wrong
from fleet_cluster import Fleet, Nodes, journal, said
from rich.console import Console
from rich.table import Table

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.distinct import finding_key
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import CASE_FILE, FINDINGS_FOLDER
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, InfraError
from fuzzshard.options import parse_duration

FAULT = Path(__file__).parent / "faults" / "set_divide_factor_raises.py"
SIGNATURE = "crash/fully_shard/KeyError in set_gradient_divide_factor"
LAST_SECONDS = 900.0
"""How long the fleet may take to get done when it is left alone."""
END_SECONDS = 150.0
"""How long it may take to end when it is asked to."""


class Chaos:
    """A fleet, its nodes, and what happens to them."""

    def __init__(self, folder: Path, nodes: Nodes, options: list[object], args: Any) -> None:
        self._folder, self._nodes, self._options = folder, nodes, options
        self._fewest_nodes, self._most_nodes = max(2, args.world_nodes), args.nodes + 1
        self._rng = random.Random(args.seed)
        self._misfortunes = {
            "ranks killed": lambda: self._kill(self.fleet.ranks()),
            "campaigns killed": lambda: self._kill(self.fleet.running_as("fuzzshard", "run")),
            "agents killed": lambda: self._kill(self.fleet.actors("Agent")),
            "lenders killed": lambda: self._kill(self.fleet.actors("Lender")),
            "heads killed": self._kill_head,
            "raylets killed": lambda: self._take_away(self._nodes.kill),
            "nodes removed": lambda: self._take_away(self._nodes.remove),
            "nodes added": self._add,
        }
        self.happened = Counter(dict.fromkeys(self._misfortunes, 0))
        self.wrong: list[str] = []
        self._of_a_driver = nodes.sockets_of_a_driver()
        self.fleet = self._begin()

    def _begin(self) -> Fleet:
        self.happened["heads started"] += 1
        return Fleet(self._folder, self._nodes, self._options)

    def _begin_again(self) -> None:
        if (code := self.fleet.process.returncode) != -signal.SIGKILL:
            said = self.fleet.log().splitlines()[-1:]
            self.wrong.append(f"a head ended by itself with {code}: {said}")
        self.fleet = self._begin()

    def disturb(self) -> str:
        """Something happens; what it was, or nothing where there was nothing to happen to."""
        if not self.fleet.running():
            self._begin_again()
            return "the head is started again"
        name, misfortune = self._rng.choice(list(self._misfortunes.items()))
        happened = False
        with contextlib.suppress(psutil.NoSuchProcess):
            happened = misfortune()
        self.happened[name] += happened
        return name if happened else ""

    def get_done(self) -> int:
        """Leaves the fleet alone until it has the planted fault, and stops it; its exit code.

        Raises :class:`InfraError` where that takes too long.
        """
        while len(self._nodes.running) < self._fewest_nodes:
            self._nodes.add()
        if not self.fleet.running():
            self._begin_again()
        entries = lambda: entries_in(self.fleet.corpus)  # noqa: E731
        self.fleet.wait_until(
            lambda: any(e.signature == SIGNATURE and e.confirmed for e in entries()),
            LAST_SECONDS,
            "the planted fault being found, shrunk and gathered",
        )
        self.fleet.wait_until(
            lambda: (
                not any(
                    campaign.works_on
                    for campaign in self.fleet.status().campaigns
                    if campaign.condition == "running"
                )
            ),
            LAST_SECONDS,
            "the end of all work on findings",
        )
        self.fleet.stop()
        return self.fleet.process.wait(END_SECONDS)

    def _kill(self, processes: list[psutil.Process]) -> bool:
        if processes:
            self._rng.choice(processes).kill()
        return bool(processes)

    def _kill_head(self) -> bool:
        self.fleet.process.kill()
        self.fleet.process.wait()
        return True

    def _take_away(self, how: Callable[[Any], None]) -> bool:
        if self._nodes.running:
            how(self._rng.choice(self._nodes.running))
            return True
        return False

    def _add(self) -> bool:
        if len(self._nodes.running) < self._most_nodes:
            self._nodes.add()
            return True
        return False

    def look_what_listens(self) -> None:
        """Takes note of sockets that should not be there."""
        self.happened["looks what listens"] += 1
        with contextlib.suppress(psutil.NoSuchProcess):
            self.wrong += self.fleet.listening(self._of_a_driver)


def entries_in(corpus: Path) -> list[CorpusEntry]:
    """The findings of a corpus that can be read now; others may be written meanwhile."""
    found = []
    for file in sorted(corpus.glob(f"{FINDINGS_FOLDER}/*/{CASE_FILE}")):
        with contextlib.suppress(OSError):
            found.append(read_entry(file))
    return found


def check_slot(slot: Path) -> list[str]:
    """The journal of a node against itself, and against what its campaign said.

    A verdict is written before it is said, so a kill leaves at most one that was written only.
    """
    wrong = []
    with journal(slot) as history:
        wrong += [str(row) for row in history.rows("PRAGMA integrity_check") if row != ("ok",)]
        sessions = history.sessions()
        if {session.campaign for session in sessions} != {1}:
            wrong.append("its sessions are not all of one campaign")
        judged = [run for run in case_runs(history, 1) if run.status is not None]
        runs = Counter((run.session, run.number) for run in judged)
        wrong += [f"case {n} was judged twice" for (_, n), times in runs.items() if times > 1]
        saved = Counter(
            event.event.path
            for event in history.events(1, "finding_saved")
            if not event.event.duplicate
        )
        wrong += [f"{path} was saved {times} times" for path, times in saved.items() if times > 1]
    written = Counter(run.number for run in judged)
    told = Counter(event["index"] for event in said(slot) if event["event"] == "case_judged")
    if missing := told - written:
        wrong.append(f"{missing.total()} verdicts were said and not written")
    if (unsaid := (written - told).total()) > len(sessions):
        wrong.append(f"{unsaid} verdicts were written and not said, in {len(sessions)} sessions")
    return [f"{slot.name}: {problem}" for problem in wrong]


def check_totals(fleet: Fleet) -> list[str]:
    """What the head counts against the journals of all nodes.

    A campaign tells its figures every ten seconds. Of one whose node was lost and has not come
    back, the head knows those of the last time.
    """
    campaigns = {campaign.corpus: campaign for campaign in fleet.status().campaigns}
    wrong, total = [], 0
    for slot in fleet.slots():
        with journal(slot) as history:
            counts = history.counts(1)
        campaign = campaigns.get(str(slot / "corpus"))
        told = Counter(campaign.stats.verdicts if campaign and campaign.stats else {})
        total += told.total()
        has_ended = campaign is not None and bool(campaign.ended)
        if told != counts if has_ended else told - counts:
            wrong.append(f"{slot.name}: the head knows of {told}, and its journal has {counts}")
    if total != fleet.status().cases:
        wrong.append(f"the head counts {fleet.status().cases} in all, and nodes told of {total}")
    return wrong


def lost_findings(fleet: Fleet) -> list[str]:
    """What any node has confirmed, and the corpus of the head lacks."""
    had = {entry.signature for entry in entries_in(fleet.corpus)}
    return [
        f"{slot.name}: {entry.signature} is confirmed and not in the corpus of the head"
        for slot in fleet.slots()
        for entry in entries_in(slot / "corpus")
        if entry.confirmed is not None and entry.signature not in had
    ]


def doubled_findings(fleet: Fleet) -> list[str]:
    """What the corpus of the head has twice; the planted fault counts by its signature."""
    had = entries_in(fleet.corpus)
    keys = Counter(finding_key(entry.signature, entry.case) for entry in had)
    doubled = [f"{name} is there twice" for (name, _), times in keys.items() if times > 1]
    if (planted := sum(entry.signature == SIGNATURE for entry in had)) > 1:
        doubled.append(f"the planted fault is {planted} times in the corpus of the head")
    return doubled


def summary(chaos: Chaos) -> dict[str, Any]:
    """What happened, in figures."""
    fleet = chaos.fleet
    slots = fleet.slots()
    sessions = shrunk = written = told = 0
    for slot in slots:
        told += sum(event["event"] == "case_judged" for event in said(slot))
        with journal(slot) as history:
            written += history.counts(1).total()
            sessions += len(history.sessions())
            shrunk += sum(
                told.event.signature == SIGNATURE and not told.event.duplicate
                for told in history.events(1, "finding_saved")
            )
    return {
        **chaos.happened,
        "nodes with a campaign": len(slots),
        "sessions": sessions,
        "cases judged, by all journals": written,
        "cases judged, as campaigns said": told,
        "cases judged, as the head counts": fleet.status().cases,
        "findings in the corpus": len(entries_in(fleet.corpus)),
        "times that the planted fault was shrunk": shrunk,
    }


def words(process: psutil.Process) -> list[str]:
    """What was called; nothing of a process that has just ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def make_table(result: dict[str, Any]) -> Table:
    """A row for each figure."""
    table = Table(title="Chaos in a fleet", title_justify="left", show_header=False)
    for name, count in result.items():
        table.add_row(name, str(count))
    return table


def torment(chaos: Chaos, args: Any, console: Console) -> list[str]:
    """Disturbs until the time is over, and leaves it alone then; what was wrong with its end."""
    began, rng = time.monotonic(), random.Random(args.seed)
    while (left := args.time - (time.monotonic() - began)) > 0:
        time.sleep(min(left, rng.uniform(0.5, 1.5) * args.disturb_every))
        chaos.look_what_listens()
        if what := chaos.disturb():
            console.print(f"{time.monotonic() - began:5.0f} s: {what}")
    try:
        code = chaos.get_done()
    except (InfraError, subprocess.TimeoutExpired) as error:
        return [*chaos.wrong, str(error)]
    wrong = list(chaos.wrong)
    if code not in (EXIT_CLEAN, EXIT_FINDING):
        wrong.append(f"the fleet ended with {code}")
    if "Traceback" in (log := chaos.fleet.log()):
        wrong.append(f"a head printed a traceback: {log[log.index('Traceback') :][:2000]}")
    return wrong


def main() -> int:
    """Makes chaos, checks, and prints a table."""
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--time", type=parse_duration, default="20m", help="how long: 10m, 1h")
    parser.add_argument(
        "--disturb-every", type=parse_duration, default="10s", help="mean time between two kills"
    )
    parser.add_argument("--engine", default="", help="test this engine only, which is faster")
    parser.add_argument("--nodes", type=int, default=2, help="nodes at the beginning")
    parser.add_argument("--world-nodes", type=int, default=1, help="nodes that share each world")
    parser.add_argument("--folder", type=Path, help="where to leave it; by default thrown away")
    args = parser.parse_args()
    console = make_console(args)
    with tempfile.TemporaryDirectory(prefix="fuzzshard-chaos-") as temporary, Nodes() as nodes:
        for _ in range(args.nodes):
            nodes.add()
        options = ["--seed", args.seed, "--device", args.device, "--world-size", args.world_size]
        folder = (args.folder or Path(temporary)).absolute()
        folder.mkdir(exist_ok=True)
        options += [
            "--world-nodes",
            args.world_nodes,
            "--preload",
            FAULT,
            *(("--engine", args.engine) if args.engine else ()),
        ]
        chaos = Chaos(folder, nodes, options, args)
        try:
            wrong = torment(chaos, args, console)
        finally:
            if chaos.fleet.running():
                chaos.fleet.process.kill()
        fleet = chaos.fleet
        left = [f"process {process.pid} is left: {words(process)}" for process in fleet.left()]
        totals = [problem for slot in fleet.slots() for problem in check_slot(slot)]
        totals += check_totals(fleet)
        lost, doubled = lost_findings(fleet), doubled_findings(fleet)
        result = {
            **summary(chaos),
            "totals that differ": len(totals),
            "confirmed findings lost": len(lost),
            "findings doubled": len(doubled),
            "processes left": len(left),
        }
        wrong += totals + lost + doubled + left
    console.print(make_table(result))
    return tell_wrong(wrong, result, args, console)


if __name__ == "__main__":
    run_main(main)
