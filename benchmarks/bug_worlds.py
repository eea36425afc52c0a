"""Worlds with a planted bug, which leave alone what torch shows without it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping

from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Case
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig

HANG_RUNS = 3
"""How often a hang is looked for without the bug."""


class StockWorld:
    """A world without any bug, shared by all hunts: does a finding show there too?"""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()

    def shows(self, case: Case, expected: Verdict) -> bool:
        """Whether ``case`` has a finding with the signature of ``expected``.

        An error may have another frame there: a bug that is planted puts a function in place of torch's own.
        What ranks wait for may come in time in one run and not in the next: a hang is looked for in several.
        """
        for _ in range(HANG_RUNS if expected.status is Status.HANG else 1):
            with self._lock:
                verdict = judge(self._world, case)
            if verdict.status.is_finding and _without_frame(verdict) == _without_frame(expected):
                return True
        return False


def _without_frame(verdict: Verdict) -> str:
    return verdict.signature.partition(" in ")[0]


SHOWS_WITHOUT = "torch shows this without the bug as well"


class BugWorld:
    """A world with a bug, in which a finding that also shows without it is none.

    So neither the hunt nor the shrinking of its catch can end at another bug, one of torch itself.
    """

    def __init__(self, world: World, stock: StockWorld) -> None:
        self._world = world
        self._stock = stock

    @property
    def info(self) -> Mapping[str, str]:
        """What the ranks run on."""
        return self._world.info

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks."""
        return self._world.pids

    def run(self, case: Case, *, deadline: float | None = None) -> Verdict:
        """The verdict with the bug; REJECTED for a finding that shows without it."""
        verdict = self._world.run(case, deadline=deadline)
        if verdict.status.is_finding and self._stock.shows(case, verdict):
            return Verdict(status=Status.REJECTED, seconds=verdict.seconds, message=SHOWS_WITHOUT)
        return verdict

    def restart(self) -> None:
        """Replaces the ranks by fresh ones."""
        self._world.restart()

    def close(self) -> None:
        """Ends the ranks."""
        self._world.close()


@functools.cache
def stock_world(config: WorldConfig, number: int) -> StockWorld:
    """A world without any bug of this process; its ranks start when there is something to compare."""
    return StockWorld(World(config))
