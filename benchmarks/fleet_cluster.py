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

from fuzzshard.errors import InfraError
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import JOURNAL_FILE
from fuzzshard.report.exchange import ExchangeStatus, read_exchange

_MEMORY = {"object_store_memory": 80_000_000}
LEFT_SECONDS = 30.0
"""How long processes of a fleet may outlive it."""


class Nodes:
    """The nodes of a cluster beside its own, which runs no campaign."""

    def __init__(self) -> None:
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**_MEMORY, "num_cpus": 0, "include_dashboard": False},
        )
        self.address = str(self._cluster.address)
        self.running: list[Any] = []

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._cluster.shutdown()

    def add(self, gpus: Sequence[int] = ()) -> None:
        """One more node, which has these CUDA devices of the machine."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else None
        self.running.append(
            self._cluster.add_node(num_cpus=1, num_gpus=len(gpus), env_vars=visible, **_MEMORY)
        )

    def remove(self, node: Any) -> None:
        """Ends a node in order."""
        self.running.remove(node)
        self._cluster.remove_node(node)

    def kill(self, node: Any) -> None:
        """Kills the raylet of a node with -9, and so the node."""
        (raylet,) = node.all_processes["raylet"]
        raylet.process.kill()
        self.remove(node)


class Fleet:
    """``fuzzshard fleet run`` as a process, its campaigns, and what all of them leave on disk."""

    def __init__(self, folder: Path, address: str, options: Sequence[object]) -> None:
        self.corpus, self._local = folder / "corpus", folder / "local"
        self._log = folder / "head.log"
        words = ["fleet", "run", "--corpus", self.corpus, "--local", self._local]
        words += ["--address", address, *options, "--json"]
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
        """Ends all campaigns, as ``fuzzshard fleet stop`` does."""
        words = [sys.executable, "-m", "fuzzshard", "fleet", "stop", str(self.corpus)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def wait_until(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        """Raises :class:`InfraError` where it is not so in time, or the head ends before."""
        end = time.monotonic() + seconds
        while not is_so():
            if not self.running() or time.monotonic() > end:
                raise InfraError(f"in {seconds:.0f} s {what} did not happen", self.log()[-2000:])
            time.sleep(0.2)

    def processes(self) -> list[psutil.Process]:
        """All processes of the campaigns, ranks included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words, folder = " ".join(process.cmdline()), process.cwd()
                if process.status() != psutil.STATUS_ZOMBIE and (
                    str(self._local) in words or folder.startswith(str(self._local))
                ):
                    found.append(process)
        return found

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
        """What ``fuzzshard fleet status`` shows."""
        return read_exchange(self.corpus / "fleet")[0]


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
