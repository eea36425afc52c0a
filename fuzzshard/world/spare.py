"""Fresh ranks that are ready before a world loses its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from concurrent.futures import Future, wait

from fuzzshard.errors import FuzzshardError
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.start import Ranks, end_ranks, kill_ranks, start_ranks

CLOSE_SECONDS = 10.0
"""How long :meth:`Spares.close` kills ranks that are just starting and waits for their end."""

MOST_FAILURES = 2
"""So many spare sets in a row that do not start say that there is no room for one: a single one
may have lost a rank to whoever kills ranks, or have met a machine that was busy for a minute. A
try in vain costs no run, but memory that the worlds may want.
"""


class Spares:
    """Keeps one set of ranks for each kind of world that was asked for; safe to use from several
    threads.

    Ranks that nobody has used yet are fresh by construction, whatever the last ones did. Whoever
    takes a set orders the next one: worlds that lose their ranks at the same moment do not wait
    for each other. One set serves all worlds of a kind, since they rarely fall together; so a node
    has the memory of one world more, or of one more on each set of CUDA devices.
    """

    def __init__(self) -> None:
        self._coming: dict[WorldConfig, Future[Ranks]] = {}
        self._failures: Counter[WorldConfig] = Counter()  # since the last set that started
        self._starting: list[Ranks] = []
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Spares:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, config: WorldConfig) -> Ranks:
        """Return ranks that have run nothing, for the caller to use and to end.

        Raises :class:`InfraError` where ranks cannot start. Where spare sets do not start
        :data:`MOST_FAILURES` times in a row, there are none from then on.
        """
        with self._lock:
            coming = self._coming.pop(config, None)
        ranks = (coming and _living(coming)) or self._started(config)
        with self._lock:  # only now: the first case waits for these ranks, and for no others
            wanted = not self._closed and self._failures[config] < MOST_FAILURES
            if wanted and config not in self._coming:
                self._coming[config] = self._order(config)
        return ranks

    @property
    def starting(self) -> list[int]:
        """The processes of ranks that start, for whoever takes them and as spare ones."""
        with self._lock:
            return [pid for ranks in self._starting for pid in ranks.pids]

    def close(self) -> None:
        """Ends what nobody has taken; later on :meth:`take` starts ranks and keeps none."""
        with self._lock:
            self._closed = True
            coming = list(self._coming.values())
            self._coming.clear()
        for future in coming:
            future.add_done_callback(_end_untaken)
        until = time.monotonic() + CLOSE_SECONDS
        while wait(coming, CLOSE_SECONDS / 50).not_done and time.monotonic() < until:
            kill_ranks(lambda: self.starting)

    def _started(self, config: WorldConfig) -> Ranks:
        ranks = Ranks()
        with self._lock:
            self._starting.append(ranks)
        try:
            return start_ranks(config, ranks)
        finally:
            with self._lock:
                self._starting = [other for other in self._starting if other is not ranks]

    def _order(self, config: WorldConfig) -> Future[Ranks]:
        future: Future[Ranks] = Future()
        threading.Thread(
            target=self._start, args=(config, future), name="fuzzshard-spare", daemon=True
        ).start()
        return future

    def _start(self, config: WorldConfig, future: Future[Ranks]) -> None:
        try:
            ranks = self._started(config)
        except BaseException as error:  # handed to whoever takes these ranks, who starts others
            with self._lock:
                self._failures[config] += 1
            future.set_exception(error)
        else:
            with self._lock:
                del self._failures[config]
            future.set_result(ranks)


def _living(coming: Future[Ranks]) -> Ranks | None:
    """Return the ranks that come, or None where they do not start or have died since."""
    with contextlib.suppress(FuzzshardError):
        ranks = coming.result()
        if ranks.alive():
            return ranks
        end_ranks(ranks.processes)
    return None


def _end_untaken(future: Future[Ranks]) -> None:
    if future.exception() is None:
        end_ranks(future.result().processes)
