"""Runs the candidates of a reduction: several at once, none twice, within a budget."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first."""

    max_evaluations: int = 1000
    max_seconds: float = 600.0


class Exhausted(Exception):
    """The budget is used up."""


class LimitReached(Exception):
    """The evaluations granted by :meth:`Evaluations.at_most` are used up."""


class Evaluations:
    """Answers which of some candidates is the first one that fails.

    While it waits for one answer, other ``workers`` run the candidates that come next if this one
    passes. ``count`` has the answers that were asked for, not those that were run ahead in vain,
    so that what a budget of evaluations allows does not depend on the number of workers.
    """

    def __init__(self, still_fails: Callable[[Case], bool], budget: Budget, workers: int) -> None:
        self.count = 0
        self._still_fails = still_fails
        self._budget = budget
        self._workers = workers
        self._pool = (
            concurrent.futures.ThreadPoolExecutor(workers, "shrink") if workers > 1 else None
        )
        self._running: dict[bytes, concurrent.futures.Future[bool]] = {}
        self._answers: dict[bytes, bool] = {}
        self._asked: set[bytes] = set()
        self._limit: int | None = None
        self._started = time.monotonic()

    def __enter__(self) -> Evaluations:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            # Whoever interrupts does not wait for candidates; their ranks end with their worlds.
            self._pool.shutdown(wait=kind is not KeyboardInterrupt, cancel_futures=True)

    @property
    def seconds(self) -> float:
        """Since the first candidate could run."""
        return time.monotonic() - self._started

    @contextlib.contextmanager
    def at_most(self, count: int) -> Iterator[None]:
        """Within, :class:`LimitReached` is raised in place of more evaluations than ``count``."""
        self._limit = self.count + count
        try:
            yield
        finally:
            self._limit = None

    def first_failing(self, candidates: Iterator[tuple[Case, T]]) -> tuple[Case, T] | None:
        """The first candidate that fails, with its tag; raises :class:`Exhausted`."""
        ahead: deque[tuple[bytes, Case, T]] = deque()
        while True:
            self._take_answers()
            self._look_ahead(candidates, ahead)
            if not ahead:
                return None
            key, case, tag = ahead[0]
            self._ask(key)
            if key in self._answers:
                ahead.popleft()
                if self._answers[key]:
                    return case, tag
            elif self._pool is None:
                self._answers[key] = self._still_fails(case)
            else:
                concurrent.futures.wait(
                    self._running.values(), return_when=concurrent.futures.FIRST_COMPLETED
                )

    def _take_answers(self) -> None:
        for key, future in list(self._running.items()):
            if future.done():
                self._answers[key] = future.result()
                del self._running[key]

    def _look_ahead(
        self, candidates: Iterator[tuple[Case, T]], ahead: deque[tuple[bytes, Case, T]]
    ) -> None:
        """Gives every idle worker a candidate; none after one that is known to fail."""
        while not any(self._answers.get(key) for key, _, _ in ahead):
            busy = len(self._running) >= self._workers or (
                ahead and (self._pool is None or self._is_over())
            )
            if busy or (offered := next(candidates, None)) is None:
                return
            case, tag = offered
            key = encode(case)
            if self._answers.get(key) is False and key in self._asked:
                continue
            ahead.append((key, case, tag))
            if self._pool is not None and key not in self._answers and key not in self._running:
                self._running[key] = self._pool.submit(self._still_fails, case)

    def _ask(self, key: bytes) -> None:
        if key in self._asked:
            return
        if self._is_over():
            raise Exhausted
        if self._limit is not None and self.count >= self._limit:
            raise LimitReached
        self._asked.add(key)
        self.count += 1

    def _is_over(self) -> bool:
        return (
            self.count >= self._budget.max_evaluations or self.seconds >= self._budget.max_seconds
        )
