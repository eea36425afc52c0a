"""Worlds with a planted bug, which leave alone what torch shows without it."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import threading
from collections.abc import Mapping
from pathlib import Path

from fuzzshard.campaign.explain import OnMends
from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Case
from fuzzshard.mending.mend import find_mend
from fuzzshard.mending.patch import Mended
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.join import preload

STOCK_RUNS = 3
"""How often a case must pass without the bug, where one run is not enough."""


class StockWorld:
    """A world without any bug, shared by all hunts: does a case pass there?"""

    def __init__(self, world: World, mends: tuple[str, ...] = ()) -> None:
        self._world = OnMends(world, mends)
        self._lock = threading.Lock()

    def passes(self, case: Case, *, runs: int = 1) -> bool:
        """Whether every one of ``runs`` runs of ``case`` passes, or is refused where that is
        announced.

        A finding under any name says no: what torch does without the bug may be the cause of what
        is seen with it, under the name of another engine or of another error.
        """
        for _ in range(runs):
            with self._lock:
                verdict = judge(self._world, case)
            if verdict.status not in (Status.PASS, Status.REJECTED):
                return False
        return True


SHOWS_WITHOUT = "the case does not pass without the bug either"


class BugWorld:
    """A world with a bug, in which a finding of a case that does not pass without it is none.

    So neither the hunt nor the shrinking of its catch can end at another bug, one of torch itself.
    A hang is looked for several times without the bug: what ranks wait for may come in time in one
    run and not in the next.
    """

    def __init__(self, world: World, stock: StockWorld, mends: tuple[str, ...] = ()) -> None:
        self._world = world
        self._stock = stock
        self._mends = mends

    @property
    def info(self) -> Mapping[str, str]:
        """What the ranks run on."""
        return self._world.info

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks."""
        return self._world.pids

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        """The verdict with the bug; REJECTED for a finding of a case that does not pass without
        it.
        """
        verdict = self._world.run(case, deadline=deadline, mends=(*self._mends, *mends))
        runs = STOCK_RUNS if verdict.status is Status.HANG else 1
        if verdict.status.is_finding and not self._stock.passes(case, runs=runs):
            return Verdict(status=Status.REJECTED, seconds=verdict.seconds, message=SHOWS_WITHOUT)
        return verdict

    def restart(self) -> None:
        """Replaces the ranks by fresh ones."""
        self._world.restart()

    def close(self) -> None:
        """Ends the ranks."""
        self._world.close()


def mends_beside(bug: Path, mends: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``mends`` that torch can have together with ``bug``, found in a process of its own.

    A function that the bug has changed is left alone by mends. What they mend must not be mended
    in the world without the bug either, or it would pass for the bug.
    """
    if not mends:
        return mends
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_taken, bug, mends).result()


def _taken(bug: Path, mends: tuple[str, ...]) -> tuple[str, ...]:
    preload(str(bug))
    mended = Mended()
    return tuple(name for name in mends if mended.takes(find_mend(name)))


@functools.cache
def stock_world(config: WorldConfig, number: int, mends: tuple[str, ...] = ()) -> StockWorld:
    """A world without any bug of this process; its ranks start when there is something to
    compare.
    """
    return StockWorld(World(config), mends)
