"""No process outlives those that need it, whoever is killed first, and none stays as a zombie."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cases import make_case

from fuzzshard.campaign.judge import judge
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig, processes
from fuzzshard.world.processes import ForkServer

LEAVES_CHILDREN = """
import os, pathlib, subprocess, sys

WAITS = "import os, threading; print(os.getpid(), flush=True); threading.Event().wait()"

def apply():
    pids = []
    for detached in (False, True):
        child = subprocess.Popen(
            [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, start_new_session=detached
        )
        pids.append(child.stdout.readline().decode().strip())
    pathlib.Path(__file__).with_name(f"children{os.getpid()}").write_text(" ".join(pids))
"""
"""Every rank starts two processes, one of them in a session of its own."""


PATIENCE_SECONDS = 20.0


@pytest.fixture
def preload(tmp_path: Path) -> Path:
    file = tmp_path / "leaves_children.py"
    file.write_text(LEAVES_CHILDREN)
    return file


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fork server that a test may kill."""
    server = ForkServer()
    monkeypatch.setattr(processes, "_server", server)
    yield
    server.close()


def family(folder: Path, pids: list[int]) -> list[psutil.Process]:
    """The ranks and what they have started."""
    started = [pid for rank in pids for pid in (folder / f"children{rank}").read_text().split()]
    return [psutil.Process(int(pid)) for pid in (*pids, *started)]


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run on, given time on a busy machine; a dead orphan is init's to reap."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and (
        left := [process for process in processes if runs(process)]
    ):
        time.sleep(0.01)
    return left


def runs(process: psutil.Process) -> bool:
    """Whether it is there and no zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def zombies() -> list[psutil.Process]:
    """Those below this process."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.status() == psutil.STATUS_ZOMBIE]


def test_what_ranks_have_started_ends_with_them(tmp_path: Path, preload: Path) -> None:
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        world.start()
        processes = family(tmp_path, world.pids)
        os.kill(world.pids[1], signal.SIGKILL)
        assert world.run(make_case()).status is Status.INFRA
        world.restart()
        assert living(processes) == []
        assert zombies() == []


@pytest.mark.slow
def test_a_fork_server_that_is_killed_leaves_nothing(
    tmp_path: Path, preload: Path, own_server: None
) -> None:
    with World(WorldConfig(size=2, preload=(str(preload),))) as world:
        world.start()
        processes = [
            process
            for process in family(tmp_path, world.pids)
            if in_own_group(process, world.pids)
        ]
        assert len(processes) == 4
        ranks = [psutil.Process(pid) for pid in world.pids]
        server = ranks[0].ppid()
        os.kill(server, signal.SIGKILL)
        assert living([psutil.Process(server), *ranks]) == []  # else they may still run the case
        assert judge(world, make_case()).status is Status.PASS
        assert living(processes) == []
        assert zombies() == []


def in_own_group(process: psutil.Process, ranks: list[int]) -> bool:
    """Whether it is a rank, or lives in the process group of one."""
    return os.getpgid(process.pid) in ranks


COORDINATOR = """
import sys, threading
from fuzzshard.world import World, WorldConfig

with World(WorldConfig(size=2, preload=(sys.argv[1],))) as world:
    world.start()
    print(*world.pids, flush=True)
    threading.Event().wait()
"""


def test_a_coordinator_that_is_killed_leaves_nothing(tmp_path: Path, preload: Path) -> None:
    command = [sys.executable, "-c", COORDINATOR, str(preload)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
        assert coordinator.stdout is not None
        ranks = [int(pid) for pid in coordinator.stdout.readline().split()]
        (zygote,) = {psutil.Process(pid).ppid() for pid in ranks}
        processes = [psutil.Process(zygote), *family(tmp_path, ranks)]
        assert len(processes) == 1 + 2 + 4
        coordinator.kill()
        assert living(processes) == []


def test_a_coordinator_that_is_killed_while_the_fork_server_starts_leaves_nothing(
    preload: Path,
) -> None:
    command = [sys.executable, "-c", COORDINATOR, str(preload)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as coordinator:
        while not (zygotes := psutil.Process(coordinator.pid).children()):
            pass
        coordinator.kill()
        assert living(zygotes) == []
