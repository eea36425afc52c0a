"""What waits to be followed up while worlds go on with fresh cases."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from fuzzshard.campaign.known import CUT_OFF, NO_VERDICT, Found
from fuzzshard.case.case import Case
from fuzzshard.verdict import Verdict

LONG = 4
"""So many waiting findings are more than a part of the time explains: cases run on torch that has
all mends, which shows no known bugs.
"""
FULL = 32
"""With so many, worlds help in place of taking fresh cases."""


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """A case whose first run showed a finding, on torch with mends or as it is; what causes it,
    nobody knows yet. ``path`` is where it is saved meanwhile.
    """

    index: int
    case: Case
    verdict: Verdict
    on_mended: bool
    path: Path

    @property
    def cut_off(self) -> Found:
        """What the next session finds of it."""
        return Found(CUT_OFF, self.case, NO_VERDICT, self.path)


class Backlog:
    """A queue between ``worlds`` that run fresh cases and ``followers``, which are other worlds;
    may be used from any thread.
    """

    def __init__(self, *, worlds: int, followers: int) -> None:
        self._waiting: deque[Suspicion | Found] = deque()
        self._worlds = worlds
        self._followers = followers
        self._in_work = 0
        self._changed = threading.Condition()

    def put(self, *items: Suspicion | Found) -> None:
        """Put them behind those that wait already."""
        with self._changed:
            self._waiting.extend(items)
            self._changed.notify_all()

    def wait_for_any(self) -> bool:
        """Waits until something waits; False where nothing will, as no world runs cases any
        more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._worlds)
            return bool(self._waiting)

    def take(self, *, wait: bool) -> Suspicion | Found | None:
        """Return the finding that has waited longest; :meth:`done` says that work on it has ended.

        None where nothing waits; with ``wait``, only once no world runs fresh cases any more.
        """
        with self._changed:
            if wait:
                self.wait_for_any()
            if not self._waiting:
                return None
            self._in_work += 1
            return self._waiting.popleft()

    def done(self) -> None:
        """Note that the work on one that was taken has ended."""
        with self._changed:
            self._in_work -= 1
            self._changed.notify_all()

    def drain(self) -> Iterable[Suspicion | Found]:
        """Return what nobody will take any more."""
        with self._changed:
            left, self._waiting = self._waiting, deque()
        return left

    def leave(self, *, follower: bool = False) -> None:
        """Note that a world has no more fresh cases, or a follower cannot go on."""
        with self._changed:
            if follower:
                self._followers -= 1
            else:
                self._worlds -= 1
            self._changed.notify_all()

    @property
    def is_long(self) -> bool:
        """Whether known bugs are met faster than they are explained."""
        with self._changed:
            return len(self._waiting) >= LONG

    @property
    def is_full(self) -> bool:
        """Whether worlds should help."""
        with self._changed:
            return len(self._waiting) >= (FULL if self._followers else 1)

    def wait_while_in_work(self, number: int) -> None:
        """Waits while at least so many wait or are being worked on, and a follower works."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._waiting) + self._in_work < number or not self._followers
            )
