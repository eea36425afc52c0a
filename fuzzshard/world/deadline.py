"""When a case counts as hung: how long cases took, and whether its ranks still do anything."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from fuzzshard.world.activity import (
    DEAD,
    RUNNABLE,
    STOPPED,
    Threads,
    activity,
    descendants,
    state_of,
)

FIRST_SECONDS = 5.0
"""While no case has ended yet: a first CUDA context and communicators keep a processor busy
meanwhile.

Times the ranks that share a device: their kernels of NCCL wait for each other, and each takes its
whole slice of time meanwhile.
"""

COMPILING_SECONDS = 40.0
"""At least, for a case that compiles: ranks import Dynamo for their first one, seconds on a busy
machine, and several engines may compile. One whose graph has all collectives took more than 20 s
under a load of 8 for each core.
"""

CUDA_SECONDS = 30.0
"""At least, for the first :data:`CUDA_CASES` cases of fresh ranks on CUDA: each new mesh makes
communicators, and each new operator loads its kernels. Two of the first fifteen cases of a
campaign took longer than 5 s.
"""

CUDA_CASES = 20
LEAST_SECONDS = 1.0
MOST_SECONDS = 15.0
"""On fresh ranks too: from the deadline on, ranks that do anything get more time, and a campaign
draws no new case while it waits for one that hangs.
"""
FACTOR = 25.0

IDLE_SECONDS = 1.0
"""Ranks that wait for each other burn no processor time in as long as this."""

IDLE_CPU_SECONDS = 0.02
"""What the threads of a rank that wake up all the time, gloo's loops 100 times a second, may use
of it.
"""

STARVED_SECONDS = 0.5
"""What all threads together may wait for a processor meanwhile.

Ranks that get on, though one after the other, want one all the time; the loops of ranks that wait
for each other did for 0.1 s under a load of 14 for each core.
"""

WATCH_SECONDS = 1.2
"""How long before a deadline ranks are watched: a window, and what polling adds to it."""

GAP_SECONDS = 0.5
"""Between two looks. A coordinator that was away for longer was starved, as its ranks may have
been.
"""


class Deadline:
    """Keeps a slowly forgetting maximum of case times; the deadline is a multiple of it.

    The limits that it starts with and keeps to are ``patience`` times those of ranks with devices
    of their own, and at least ``warm_up`` seconds on fresh ranks.
    """

    def __init__(self, patience: int = 1, warm_up: float = 0.0) -> None:
        self._patience = patience
        self._warm_up = warm_up
        self._slowest = 0.0

    def observe(self, seconds: float) -> None:
        """Takes the time of a case that ended by itself."""
        self._slowest = max(seconds, self._slowest * 0.98)

    def seconds(self, fresh: bool, compiles: bool = False) -> float:
        """Return after how long a case is suspect, on ``fresh`` ranks or on others."""
        learned = max(self._learned(fresh), self._warm_up * fresh)
        return max(learned, COMPILING_SECONDS) if compiles else learned

    def _learned(self, fresh: bool) -> float:
        if not self._slowest:
            return FIRST_SECONDS * self._patience
        calibrated = max(FACTOR * self._slowest, LEAST_SECONDS) * (1 + fresh)
        return min(calibrated, MOST_SECONDS * self._patience)


class _Look(NamedTuple):
    time: float
    ran: float
    wanted: float
    stopped: frozenset[int]


def _activities(pids: Collection[int]) -> dict[int, Threads]:
    return {pid: activity(pid) for pid in pids}


class IdleWatch:
    """Whether ranks do nothing at all, or are merely slow on a busy machine. ``ranks`` has their
    pids.

    It looks at them again and again, so that a second without any activity has passed *before* the
    deadline and a hang is told right at it. A starved rank is no idle one: the kernel counts the
    time that a thread has waited for a processor. What a rank has started, a compiler say, works
    for it.
    """

    def __init__(
        self,
        ranks: Mapping[int, int],
        activities: Callable[[Collection[int]], dict[int, Threads]] = _activities,
        descendants: Callable[[Collection[int]], frozenset[int]] = descendants,
    ) -> None:
        """By default the ranks are those of this node."""
        self._ranks = dict(ranks)
        self._activities = activities
        self._descendants_of = descendants
        self._family = self._descendants()
        self._before: dict[int, Threads] = {}
        self._looks: deque[_Look] = deque()
        self.dead: frozenset[int] = frozenset()
        """Ranks that have died, though a child of theirs may still hold their channel open."""

    def look(self) -> None:
        """Takes the time that ranks have used since the last look."""
        now = time.monotonic()
        last = self._looks[-1].time if self._looks else now
        if now - last > GAP_SECONDS:
            self._looks.clear()
        threads = self._activities((*self._ranks.values(), *self._family))
        states = {rank: state_of(pid, threads[pid]) for rank, pid in self._ranks.items()}
        used = [
            _used(each, self._before.get(pid, {}), now - last) for pid, each in threads.items()
        ]
        ran, wanted = (sum(seconds) for seconds in zip(*used, strict=True))
        stopped = frozenset(rank for rank, state in states.items() if state in STOPPED)
        self.dead = frozenset(rank for rank, state in states.items() if state in DEAD)
        self._before = threads
        self._looks.append(_Look(now, ran, wanted, stopped))
        while len(self._looks) > 1 and self._looks[1].time <= now - IDLE_SECONDS:
            self._looks.popleft()

    def is_idle(self) -> bool:
        """Return whether a whole window has passed in which no rank, and nothing it started, used
        a processor.
        """
        window = list(self._looks)[1:]  # what the first look saw was used before it
        ran, wanted = sum(look.ran for look in window), sum(look.wanted for look in window)
        busy = ran >= IDLE_CPU_SECONDS * len(self._ranks) or wanted >= STARVED_SECONDS
        if busy or not self._is_whole():
            return False
        if self._looks[-1].stopped != self.stopped():  # somebody has stopped one in this window
            return False
        family = self._descendants()
        if family - self._family:  # nobody has looked at them yet
            self._looks.clear()
        self._family = family
        return bool(self._looks)

    def stopped(self) -> frozenset[int]:
        """Return the ranks that were stopped by a signal or a debugger in a whole window."""
        if not self._is_whole():
            return frozenset()
        return frozenset.intersection(*(look.stopped for look in self._looks))

    def _is_whole(self) -> bool:
        return bool(self._looks) and self._looks[-1].time - self._looks[0].time >= IDLE_SECONDS

    def _descendants(self) -> frozenset[int]:
        """Takes long: not for every look."""
        return self._descendants_of(self._ranks.values())


def _used(threads: Threads, before: Threads, since: float) -> tuple[float, float]:
    """Seconds that the threads ran since the last look, and that they ran or waited for a
    processor.

    The kernel counts a wait when it ends; a thread that did nothing but wait is told by its state.
    """
    ran, wanted = 0.0, 0.0
    for tid, each in threads.items():
        last = before.get(tid, each)
        moved = each.ran - last.ran + each.waited - last.waited
        ran += each.ran - last.ran
        wanted += since if not moved and each.state in RUNNABLE else moved
    return ran, wanted
