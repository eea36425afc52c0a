"""What the kernel says about processes: whether they run, wait for a processor, are stopped or
dead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")

RUNNABLE = "RD"
"""Running or waiting for a processor, and waiting for a disk: either goes on by itself."""

STOPPED = "Tt"
"""By a signal, or by a debugger."""

DEAD = "ZX"


class ThreadActivity(NamedTuple):
    """Seconds that one thread has run, and has waited for a processor; its state, a letter as in
    ``ps``.
    """

    ran: float
    waited: float
    state: str


Threads = dict[int, ThreadActivity]
"""Those of one process, by their ids."""


def activity(pid: int) -> Threads:
    """Return the threads of a process; none of a process that does not exist."""
    return dict(_threads(Path(f"/proc/{pid}/task")))


def state_of(pid: int, threads: Threads) -> str:
    """Return the state of the process as a whole: its main thread's. It outlives the others as a
    zombie.
    """
    return threads[pid].state if pid in threads else "X"


def descendants(pids: Collection[int]) -> frozenset[int]:
    """Return all processes that these have started: a scan of all processes of the machine."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return frozenset(found)


def _threads(tasks: Path) -> Iterator[tuple[int, ThreadActivity]]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # threads end while we look
        for task in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield int(task.name), _thread(task)


def _thread(task: Path) -> ThreadActivity:
    # The name of a program, in parentheses, may hold anything, parentheses too: proc_pid_stat(5).
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    state, user, system = fields[0], int(fields[11]), int(fields[12])
    try:
        ran, waited, _ = (
            (task / "schedstat").read_text().split()
        )  # nanoseconds: sched-stats in its documentation
    except FileNotFoundError:  # kernels without CONFIG_SCHED_INFO, and gVisor
        return ThreadActivity((user + system) * _TICK_SECONDS, 0.0, state)
    return ThreadActivity(int(ran) / 1e9, int(waited) / 1e9, state)
