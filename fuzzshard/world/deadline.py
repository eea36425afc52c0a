"""When a case counts as hung: how long cases took, and whether its ranks still do anything."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

FIRST_SECONDS = 5.0
"""While no case has ended yet: a first CUDA context and communicators keep a processor busy meanwhile."""

LEAST_SECONDS = 1.0
MOST_SECONDS = 60.0
FACTOR = 25.0

IDLE_SECONDS = 1.0
"""Ranks that wait for each other burn no processor time; starved ones burn some in as long as this."""

IDLE_CPU_SECONDS = 0.02


class Deadline:
    """Keeps a slowly forgetting maximum of case times; the deadline is a multiple of it."""

    def __init__(self) -> None:
        self._slowest = 0.0

    def observe(self, seconds: float) -> None:
        """Takes the time of a case that ended by itself."""
        self._slowest = max(seconds, self._slowest * 0.98)

    def seconds(self, fresh: bool) -> float:
        """After how long a case is suspect."""
        if not self._slowest:
            return FIRST_SECONDS
        calibrated = min(max(FACTOR * self._slowest, LEAST_SECONDS), MOST_SECONDS)
        return 2 * calibrated if fresh else calibrated


class IdleWatch:
    """Whether suspect ranks do nothing at all, or are merely slow on a busy machine."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._began = time.monotonic()
        self._used = self._cpu_seconds()

    def is_idle(self) -> bool | None:
        """True after a window without processor time, False when some was used, None while it is open."""
        if time.monotonic() - self._began < IDLE_SECONDS:
            return None
        idle = self._cpu_seconds() - self._used < IDLE_CPU_SECONDS
        self._began, self._used = time.monotonic(), self._cpu_seconds()
        return idle

    def _cpu_seconds(self) -> float:
        total = 0.0
        for pid in self._pids:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total
