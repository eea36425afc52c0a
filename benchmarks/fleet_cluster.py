"""A Ray cluster of several nodes on this machine, and a fleet on it; for the benchmarks of
fleets.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from fuzzshard.campaign.exchange import STOP_FILE
from fuzzshard.errors import InfraError
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import JOURNAL_FILE
from fuzzshard.report.exchange_status import ExchangeStatus, read_exchange

_MEMORY = {"object_store_memory": 80_000_000}
_SERVER, _GUARD = "fuzzshard.world.zygote", "fuzzshard.guard"
LEFT_SECONDS = 30.0
"""How long processes of a fleet may outlive it."""


_IDLE_DRIVER = """
import psutil, ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)
print(sum(each.status == "LISTEN" for each in psutil.Process().net_connections("tcp")))
"""


class Nodes:
    """The nodes of a cluster beside its own, which runs no campaign. ``raylets`` are the processes
    of all that there were.
    """

    def __init__(self) -> None:
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**_MEMORY, "num_cpus": 0, "include_dashboard": False},
        )
        self.address = str(self._cluster.address)
        self.running: list[Any] = []
        self.raylets = {_raylet_of(self._cluster.head_node).pid}

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._cluster.shutdown()

    def add(self, gpus: Sequence[int] = ()) -> None:
        """One more node, which has these CUDA devices of the machine."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else None
        node = self._cluster.add_node(num_cpus=1, num_gpus=len(gpus), env_vars=visible, **_MEMORY)
        self.running.append(node)
        self.raylets.add(_raylet_of(node).pid)

    def remove(self, node: Any) -> None:
        """Ends a node in order."""
        self.running.remove(node)
        self._cluster.remove_node(node)

    def kill(self, node: Any) -> None:
        """Kills the raylet of a node with -9, and so the node."""
        _raylet_of(node).kill()
        self.remove(node)

    def sockets_of_a_driver(self) -> int:
        """How many sockets listen in a process that is a driver of the cluster and does
        nothing.
        """
        words = [sys.executable, "-c", _IDLE_DRIVER, self.address]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def _raylet_of(node: Any) -> subprocess.Popen[bytes]:
    (raylet,) = node.all_processes["raylet"]
    return raylet.process  # type: ignore[no-any-return]


class Fleet:
    """``fuzzshard fleet run`` as a process, its campaigns, and what all of them leave on disk."""

    def __init__(self, folder: Path, nodes: Nodes, options: Sequence[object]) -> None:
        self._nodes = nodes
        self.corpus, self._local = folder / "corpus", folder / "local"
        self._log = folder / "head.log"
        words = ["fleet", "run", "--corpus", self.corpus, "--local", self._local]
        words += ["--address", nodes.address, *options, "--json"]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fuzzshard", *map(str, words)], stdout=log, stderr=log
            )

    def log(self) -> str:
        """What every head has said so far."""
        return self._log.read_text()

    def running(self) -> bool:
        """Whether the head lives."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Ends all campaigns."""
        (self.corpus / "fleet" / STOP_FILE).touch()

    def wait_until(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        """Raises :class:`InfraError` where it is not so in time, or the head ends before."""
        end = time.monotonic() + seconds
        while not is_so():
            if not self.running() or time.monotonic() > end:
                raise InfraError(f"in {seconds:.0f} s {what} did not happen", self.log()[-2000:])
            time.sleep(0.2)

    def processes(self) -> list[psutil.Process]:
        """All processes of the campaigns, and their ranks on all nodes."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words, folder = " ".join(process.cmdline()), process.cwd()
                is_of_slot = str(self._local) in words or folder.startswith(str(self._local))
                if process.status() != psutil.STATUS_ZOMBIE and (
                    is_of_slot or ("fuzzshard" in words and self._is_on_a_node(process))
                ):
                    found.append(process)
        return found

    def _is_on_a_node(self, process: psutil.Process) -> bool:
        """Whether an actor has started it: Ray tells these which raylet is theirs."""
        raylet = process.environ().get("RAY_RAYLET_PID", "")
        return raylet.isdigit() and int(raylet) in self._nodes.raylets

    def running_as(self, module: str, *words: str) -> list[psutil.Process]:
        """The processes that Python runs with these words after ``-m``."""
        return [p for p in self.processes() if _words(p)[: len(words) + 1] == [module, *words]]

    def servers(self) -> list[psutil.Process]:
        """The fork servers."""
        forked = self.running_as(_SERVER)
        pids = {process.pid for process in forked}
        return [process for process in forked if process.ppid() not in pids]

    def ranks(self) -> list[psutil.Process]:
        """Those of all nodes."""
        return [rank for server in self.servers() for rank in server.children()]

    def actors(self, kind: str) -> list[psutil.Process]:
        """The agents (``Agent``) or the lenders (``Lender``) on nodes."""
        parents = {p.parent() for p in (*self.running_as(_GUARD), *self.servers())}
        return [p for p in parents if p is not None and f"ray::{kind}" in " ".join(p.cmdline())]

    def listening(self, of_a_driver: int) -> list[str]:
        """What listens and should not. In ranks the store of torch and gloo do, and Ray in each of
        its actors and drivers, with as many sockets as in one that does nothing
        (``of_a_driver``); nothing else does.
        """
        campaigns = [p for p in self.running_as("fuzzshard", "run") if "--cluster" in _words(p)]
        head = psutil.Process(self.process.pid)
        rays = [head, *campaigns, *self.actors("Agent"), *self.actors("Lender")]
        ranks = self.ranks()
        others = [p for p in self.processes() if _words(p)[:1] and p not in (*rays, *ranks)]
        wrong = []
        for process, allowed in [*((p, of_a_driver) for p in rays), *((p, 0) for p in others)]:
            with contextlib.suppress(psutil.Error):
                found = [
                    f"{each.laddr.ip}:{each.laddr.port}"
                    for each in process.net_connections("tcp")
                    if each.status == psutil.CONN_LISTEN
                ]
                if len(found) > allowed:
                    wrong.append(f"{process.cmdline()} listens at {found}")
        return wrong

    def left(self) -> list[psutil.Process]:
        """What still runs of the campaigns when all of it should have ended."""
        end = time.monotonic() + LEFT_SECONDS
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.2)
        return left

    def slots(self) -> list[Path]:
        """The folders of campaigns that have begun."""
        return sorted(
            path.parent.parent for path in self._local.glob(f"*/*/corpus/{JOURNAL_FILE}")
        )

    def status(self) -> ExchangeStatus:
        """What ``fuzzshard status`` shows of it."""
        return read_exchange(self.corpus / "fleet")[0]


def _words(process: psutil.Process) -> list[str]:
    """The module of fuzzshard that a process runs, and its arguments; empty for another one."""
    with contextlib.suppress(psutil.Error):
        line = process.cmdline()
        if "-m" in line and line[line.index("-m") + 1].startswith("fuzzshard"):
            return line[line.index("-m") + 1 :]
    return []


def journal(slot: Path) -> History:
    """That of the campaign in a slot."""
    return History(slot / "corpus" / JOURNAL_FILE)


def said(slot: Path) -> Iterator[dict[str, Any]]:
    """Every event that the campaign in a slot has printed, in all of its sessions."""
    for line in (slot / "run.log").read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # of a warning, or cut in two by a kill
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
