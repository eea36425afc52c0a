"""The reducer: from a failing case to a smallest one that still fails.

It runs the passes of :mod:`fuzzshard.shrink.tiers` to a fixpoint, then takes a detour over a bigger case
when one still fails, and stops when neither helps. Whatever the order of the tiers, a case replaces
another one only if it is smaller in :func:`fuzzshard.case.order.size_order`.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode
from fuzzshard.case.order import Size, size_order
from fuzzshard.shrink.detours import detours
from fuzzshard.shrink.passes import Edit, Pass
from fuzzshard.shrink.repair import repaired
from fuzzshard.shrink.tiers import TIERS

T = TypeVar("T")

DETOUR_EVALUATIONS = 40
"""How many evaluations a bigger case may use to become smaller than the one it came from."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first."""

    max_evaluations: int = 1000
    max_seconds: float = 600.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """A smaller failing case was found by the pass ``name``."""

    name: str
    case: Case
    size: Size
    evaluations: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class ShrinkResult:
    """The smallest failing case met. Not ``finished``: the budget or the user ended the search."""

    case: Case
    evaluations: int
    seconds: float
    finished: bool
    trail: tuple[Progress, ...]


def shrink(
    case: Case,
    still_fails: Callable[[Case], bool],
    *,
    budget: Budget = Budget(),
    on_progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
) -> ShrinkResult:
    """Reduces ``case``, for which ``still_fails`` is true, to a local minimum of ``size_order``.

    ``still_fails`` is called with valid cases only, never twice with the same one; with several
    ``workers`` from that many threads at once. The result does not depend on ``workers``: of the
    candidates tried at once the first one in order is taken. To resume an unfinished reduction, start
    again from its result. Raises :class:`ValueError` when ``case`` does not fail to begin with.
    """
    with concurrent.futures.ThreadPoolExecutor(workers, "shrink") as pool:
        reducer = _Reducer(case, still_fails, budget, on_progress, workers, pool)
        finished = reducer.run()
    return ShrinkResult(reducer.best, reducer.evaluations, reducer.seconds, finished, tuple(reducer.trail))


class _Exhausted(Exception):
    """The budget is used up."""


class _DetourOver(Exception):
    """The evaluations granted to a detour are used up."""


class _Reducer:
    """``current`` is being reduced; ``best`` is the smallest failing case so far, always."""

    def __init__(
        self,
        case: Case,
        still_fails: Callable[[Case], bool],
        budget: Budget,
        on_progress: Callable[[Progress], None] | None,
        workers: int,
        pool: concurrent.futures.ThreadPoolExecutor,
    ) -> None:
        self.current = self.best = case
        self.still_fails = still_fails
        self.budget = budget
        self.on_progress = on_progress
        self.workers = workers
        self.pool = pool
        self.started = time.monotonic()
        self.known: dict[bytes, bool] = {}
        self.detoured: set[bytes] = set()
        self.evaluations = 0
        self.detour_end: int | None = None
        self.trail: list[Progress] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def run(self) -> bool:
        """Whether a fixpoint was reached."""
        try:
            if not any(self.evaluate([self.best])):
                raise ValueError("the case to shrink does not fail; confirm it first")
            for tier in TIERS:
                for each in tier:
                    self.halve(each)
            self.descend()
            while self.detour():
                pass
        except (_Exhausted, KeyboardInterrupt):
            return False
        return True

    def descend(self) -> None:
        """Runs the tiers until none of them helps; a tier that helped starts over from the first one."""
        while any(self.run_tier(tier) for tier in TIERS):
            pass

    def run_tier(self, tier: tuple[Pass, ...]) -> bool:
        return sum(self.one_by_one(each) for each in tier) > 0

    def halve(self, each: Pass) -> None:
        """All edits at once, then by halves, left to right; exclusive edits one by one."""
        if not each.independent:
            self.one_by_one(each)
            return
        base, edits = self.current, tuple(each.edits(self.current))
        done: tuple[int, ...] = ()
        stack = [tuple(range(len(edits)))] if edits else []
        while stack:
            found = self.first_failing(
                (self.apply(base, [edits[i] for i in sorted(done + chunk)]), (chunk, rest))
                for chunk, rest in _if_all_pass(stack)
            )
            if found is None:
                return
            candidate, (chunk, stack) = found
            done += chunk
            self.accept(each.name, candidate)

    def one_by_one(self, each: Pass) -> bool:
        """Single edits, round and round, until a whole round changes nothing."""
        start, helped = 0, False
        while True:
            edits = list(each.edits(self.current))
            order = [(start + i) % len(edits) for i in range(len(edits))]
            base = self.current
            found = self.first_failing((self.apply(base, [edits[i]]), i) for i in order)
            if found is None:
                return helped
            candidate, start = found
            helped = True
            self.accept(each.name, candidate)

    def apply(self, base: Case, edits: Sequence[Edit]) -> Case | None:
        """The repaired result, if it is valid and smaller than the current case."""
        changed = base
        for edit in reversed(edits):
            changed = edit(changed)
        candidate = repaired(changed) if changed != base else None
        if candidate is None or size_order(candidate) >= size_order(self.current):
            return None
        return candidate

    def accept(self, name: str, candidate: Case) -> None:
        self.current = candidate
        size = size_order(candidate)
        if size < size_order(self.best):
            self.best = candidate
            progress = Progress(name, candidate, size, self.evaluations, self.seconds)
            self.trail.append(progress)
            if self.on_progress:
                self.on_progress(progress)

    def first_failing(self, candidates: Iterator[tuple[Case | None, T]]) -> tuple[Case, T] | None:
        """The first candidate that fails, with its tag; evaluates as many at once as there are workers."""
        offered = ((case, tag) for case, tag in candidates if case is not None)
        while batch := list(itertools.islice(offered, self.workers)):
            verdicts = self.evaluate([case for case, _ in batch])
            for (case, tag), failed in zip(batch, verdicts, strict=True):
                if failed:
                    return case, tag
        return None

    def evaluate(self, cases: list[Case]) -> list[bool]:
        keys = [encode(case) for case in cases]
        unknown = {k: c for k, c in zip(keys, cases, strict=True) if k not in self.known}
        if unknown:
            if self.evaluations >= self.budget.max_evaluations or self.seconds >= self.budget.max_seconds:
                raise _Exhausted
            if self.detour_end is not None and self.evaluations >= self.detour_end:
                raise _DetourOver
            self.evaluations += len(unknown)
            run = map if self.workers == 1 else self.pool.map
            self.known |= zip(unknown, run(self.still_fails, unknown.values()), strict=True)
        return [self.known[key] for key in keys]

    def detour(self) -> bool:
        """Tries each bigger case once; true when one led to a smaller one."""
        origin = self.best
        for edit in detours(origin):
            bigger = repaired(edit(origin))
            key = encode(bigger) if bigger else b""
            if bigger is None or key in self.detoured:
                continue
            self.detoured.add(key)
            if not any(self.evaluate([bigger])):
                continue
            self.current = bigger
            self.detour_end = self.evaluations + DETOUR_EVALUATIONS
            try:
                self.descend()
            except _DetourOver:
                pass
            finally:
                self.detour_end = None
            self.current = self.best
            if self.best != origin:
                self.descend()
                return True
        return False


def _if_all_pass(
    stack: list[tuple[int, ...]],
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Chunks in the order to try while every one passes, each with what is left to try if it fails."""
    while stack:
        chunk, *stack = stack
        yield chunk, stack
        if len(chunk) > 1:
            middle = len(chunk) // 2
            stack = [chunk[:middle], chunk[middle:], *stack]
