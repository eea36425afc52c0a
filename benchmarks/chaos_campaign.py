"""One session of a campaign that misfortunes happen to, and what it said before and after them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from fuzzshard.errors import (
    EXIT_CLEAN,
    EXIT_FINDING,
    EXIT_INCONCLUSIVE,
    EXIT_INFRA,
    EXIT_INTERRUPTED,
)

DISK_LEFT = (4 << 10, 64 << 10)
"""Sizes at which a file of the campaign counts as filling the disk."""


ENDINGS = ("killed", "killed with all ranks", "terminated", "disk full")
EXIT_CODES = {
    "killed": (-signal.SIGKILL,),
    "killed with all ranks": (-signal.SIGKILL,),
    "terminated": (EXIT_INTERRUPTED,),
    "disk full": (EXIT_INFRA,),
    "gave up on its ranks": (EXIT_INFRA,),
    "left alone": (EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE),
}
"""How a campaign may end, and the exit codes that are right for it."""


class Session:
    """A campaign as a process in a session of its own; its events are counted as it says them."""

    def __init__(self, corpus: Path, arguments: Sequence[object]) -> None:
        command = [
            sys.executable,
            "-m",
            "fuzzshard",
            "run",
            "--json",
            "--corpus",
            corpus,
            *arguments,
        ]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.counts: Counter[str] = Counter()
        self.cases: dict[str, list[int]] = {"case_started": [], "case_judged": []}
        self.started: dict[str, Any] = {}
        self.finished: dict[str, Any] | None = None
        self.errors = ""
        self.ending = ""
        self.happened: Counter[str] = Counter()
        self._readers = [
            threading.Thread(target=read, daemon=True)
            for read in (self._listen, self._listen_to_errors)
        ]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:  # cut in two by a kill
                continue
            self.counts[event["event"]] += 1
            if event["event"] in self.cases:
                self.cases[event["event"]].append(event["index"])
            if event["event"] == "campaign_started":
                self.started = event
            if event["event"] == "campaign_finished":
                self.finished = event

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read().decode(errors="replace")

    def running(self) -> bool:
        """Whether nothing has ended it yet."""
        return self.process.poll() is None

    def disturb(self, rng: random.Random) -> None:
        """A rank dies or stops, if there is one at this moment."""
        number, name = rng.choice(
            ((signal.SIGKILL, "ranks killed"), (signal.SIGSTOP, "ranks stopped"))
        )
        ranks = self._ranks()
        if ranks:
            os.kill(rng.choice(ranks).pid, number)
            self.happened[name] += 1

    def end(self, ending: str, rng: random.Random) -> None:
        """Ends it in one of the ways of :data:`ENDINGS`."""
        self.ending = ending
        pid = self.process.pid
        match self.ending:
            case "killed":
                os.kill(pid, signal.SIGKILL)
            case "killed with all ranks":
                ranks = self._ranks()  # each leads a process group of its own
                os.killpg(pid, signal.SIGKILL)
                for rank in ranks:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        rank.kill()
            case "terminated":
                os.kill(pid, signal.SIGTERM)
            case _:
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (rng.choice(DISK_LEFT), hard))

    def wait(self, seconds: float) -> list[str]:
        """Waits for the end and reads the rest; what is wrong with how it ended."""
        wrong = []
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            wrong.append(f"{self.ending or 'left alone'}, it did not end in {seconds:.0f} s")
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        for reader in self._readers:
            reader.join(30)
        if not self.ending:
            self.ending = "gave up on its ranks" if self.happened else "left alone"
        if code not in EXIT_CODES[self.ending]:
            reason = self.finished["reason"] if self.finished else self.errors[-300:]
            wrong.append(f"{self.ending}, it ended with {code}: {reason}")
        if "Traceback" in self.errors:
            wrong.append(f"{self.ending}, it printed a traceback: {self.errors[-300:]}")
        wrong += [f"process {process.pid} of it is left" for process in self._left()]
        return wrong

    def _ranks(self) -> list[psutil.Process]:
        """The processes that the fork server has started."""
        try:
            children = psutil.Process(self.process.pid).children()
            zygotes = [child for child in children if "fuzzshard.world.zygote" in child.cmdline()]
            return [rank for zygote in zygotes for rank in zygote.children()]
        except psutil.Error:
            return []

    def _left(self) -> list[psutil.Process]:
        """Processes that it has started and that live on; they get ten seconds."""
        _, alive = psutil.wait_procs(of_session(self.process.pid), timeout=10)
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def of_session(leader: int) -> list[psutil.Process]:
    """The processes of a session: a campaign, its fork server, its ranks, which lead groups of
    their own.
    """
    return [process for process in psutil.process_iter() if _session(process) == leader]


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return -1
