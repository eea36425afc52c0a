"""A campaign as a process with real ranks, and what it says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

Event = dict[str, Any]


@contextlib.contextmanager
def campaign(corpus: Path, *arguments: object) -> Iterator[Campaign]:
    command = [
        sys.executable,
        "-m",
        "fuzzshard",
        "run",
        "--json",
        "--device",
        "cpu",
        "--world-size",
        2,
    ]
    command += ["--corpus", corpus, "--seed", 1, *arguments]
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Campaign(process)
        finally:
            process.kill()


class Campaign:
    """A running campaign and the events it has told so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[Event] = []

    def read_until(self, name: str) -> Event:
        """Read as far as an event of this name, or a world that begins a phase of this name."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if name in (self.events[-1]["event"], self.events[-1].get("phase")):
                return self.events[-1]
        raise AssertionError(f"no {name} in {self.events}; {self.errors()}")

    def finish(self) -> Event:
        finished = self.read_until("campaign_finished")
        self.process.wait(60)
        assert finished["exit_code"] == self.process.returncode
        return finished

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def all(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def kill_all(self) -> None:
        """SIGKILL for the campaign and its ranks at one moment, as when a node goes down."""
        everybody = self.descendants()  # each rank leads a process group of its own
        os.killpg(self.process.pid, signal.SIGKILL)
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)
