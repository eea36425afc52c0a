"""From a suspicion to a result: does a finding repeat on fresh ranks, and how small a case shows it.

Used by the campaign, by ``fuzzshard shrink`` and by the benchmarks; it saves nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from fuzzshard.campaign.events import Event, FindingConfirmed, PhaseChanged, ShrinkProgress
from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import finer, is_low_precision
from fuzzshard.case.order import leaf_count, size_order
from fuzzshard.errors import FuzzshardError
from fuzzshard.shrink import Budget, shrink
from fuzzshard.verdict import Status, Verdict

CONFIRM_DEADLINE = 30.0
"""Seconds that the first confirming run may take, and at least twice the finding's own time: a slow
machine is no hang."""
CONFIRM_RUNS = 3
"""Runs of the final case, each on fresh ranks; the rate is kept in the corpus entry."""
SHRINK_BUDGET = Budget(max_evaluations=300, max_seconds=180.0)

STRICTNESS = {"precision": 0, "bounded": 1, "relation": 1, "bitwise": 2, "exact": 2, "invariant": 3}
"""How much a rung demands; ``bitwise`` and ``exact`` both demand equal bits."""


class Runner(Protocol):
    """What judging needs of a :class:`fuzzshard.world.World`."""

    def run(self, case: Case, *, deadline: float | None = None) -> Verdict:
        """Runs ``case`` on live ranks, up to ``deadline`` seconds."""

    def restart(self) -> None:
        """Replaces the ranks by fresh ones."""


class Stopped(Exception):
    """Raised by a runner in place of a verdict when whoever owns it wants no more runs."""


@dataclasses.dataclass(frozen=True)
class Confirmation:
    """How many of ``runs`` on fresh ranks showed the finding, and what the others showed."""

    runs: int = 0
    reproduced: int = 0
    others: tuple[str, ...] = ()

    def __add__(self, other: Confirmation) -> Confirmation:
        return Confirmation(
            self.runs + other.runs, self.reproduced + other.reproduced, self.others + other.others
        )

    @property
    def flaky(self) -> bool:
        """Whether the finding had its chance and did not come back."""
        return self.runs > 0 and self.reproduced == 0


@dataclasses.dataclass(frozen=True)
class Judged:
    """What is known about a finding in the end: its smallest ``case``, with the verdict that shows it.

    ``note`` says what cut the work short or went wrong on the way.
    """

    case: Case
    verdict: Verdict
    confirmation: Confirmation
    evaluations: int = 0
    finished: bool = False
    note: str = ""


def judge(world: Runner, case: Case, *, deadline: float | None = None, fresh: bool = False) -> Verdict:
    """The verdict of one run, with ``fresh`` on fresh ranks; INFRA is tried once more on fresh ranks.

    An inconclusive case runs again in the next higher precision (float32 in float64, where a logic error
    stands out by ten orders of magnitude): if it passes there, it was rounding.
    """
    verdict = _run(world, case, deadline, fresh)
    if verdict.status is Status.INFRA:
        return _run(world, case, deadline, True)
    if verdict.status is Status.INCONCLUSIVE and (finer_case := finer(case)) != case:
        precise = _run(world, finer_case, deadline, False)
        if precise.status is Status.PASS:
            return msgspec.structs.replace(
                precise, message=f"rounding: it passes in {_precision(finer_case)}"
            )
    return verdict


def judge_clearly(world: Runner, case: Case) -> tuple[Case, Verdict]:
    """The verdict of one run, and the case that it is about.

    That is another one where rounding might explain what is wrong with ``case``, and cannot in the next
    higher precision: then the case in that precision is the finding.
    """
    verdict = judge(world, case)
    if verdict.status is Status.INCONCLUSIVE and (finer_case := finer(case)) != case:
        clearer, precise = judge_clearly(world, finer_case)
        if precise.status.is_finding:
            return clearer, precise
    return case, verdict


def _precision(case: Case) -> str:
    """What the values of a case are computed in."""
    return "higher precision" if is_low_precision(case) else case.dtype


def _run(world: Runner, case: Case, deadline: float | None, fresh: bool) -> Verdict:
    try:
        if fresh:
            world.restart()
        return world.run(case, deadline=deadline)
    except FuzzshardError as error:
        return Verdict(status=Status.INFRA, message=str(error))


def same_finding(verdict: Verdict, expected: Verdict) -> bool:
    """Whether ``verdict`` is the finding ``expected``: the same signature, on a rung as strict.

    A looser rung would let shrinking slip from a logic error into rounding.
    """
    if not verdict.status.is_finding or verdict.signature != expected.signature:
        return False
    if expected.status is not Status.DIVERGENCE:
        return True
    return STRICTNESS[verdict.findings[0].rung] >= STRICTNESS[expected.findings[0].rung]


def confirm(
    world: Runner, case: Case, expected: Verdict, *, runs: int = 1, deadline: float | None = None
) -> Confirmation:
    """Runs ``case`` on fresh ranks ``runs`` times; runs without a verdict (INFRA, stopped) do not count."""
    others: list[str] = []
    reproduced = 0
    try:
        for _ in range(runs):
            verdict = judge(world, case, deadline=deadline, fresh=True)
            if same_finding(verdict, expected):
                reproduced += 1
            elif verdict.status is not Status.INFRA:
                others.append(verdict.signature or str(verdict.status))
    except Stopped:
        pass
    return Confirmation(runs=reproduced + len(others), reproduced=reproduced, others=tuple(others))


class _Smallest:
    """The predicate of shrinking; holds the smallest failing case, whatever ends the shrinking."""

    def __init__(self, world: Runner, case: Case, expected: Verdict, emit: Callable[[Event], None]) -> None:
        self.world = world
        self.case = case
        self.verdict = self.expected = expected
        self.emit = emit
        self.evaluations = 0

    def still_fails(self, candidate: Case) -> bool:
        self.evaluations += 1
        verdict = judge(self.world, candidate)
        if not same_finding(verdict, self.expected):
            return False
        if size_order(candidate) < size_order(self.case):
            self.case, self.verdict = candidate, verdict
            self.emit(
                ShrinkProgress(
                    signature=verdict.signature, evaluations=self.evaluations, leaves=leaf_count(candidate)
                )
            )
        return True


def confirm_and_shrink(
    world: Runner,
    case: Case,
    expected: Verdict,
    *,
    emit: Callable[[Event], None] = lambda event: None,
    shrinking: bool = True,
    budget: Budget = SHRINK_BUDGET,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Judged:
    """Confirms the finding ``expected`` of ``case``, shrinks it, and confirms the result three times.

    A finding that does not come back is returned as it is, with a flaky confirmation. Shrinking is
    bounded by ``budget`` and by ``seconds_left()``; whatever ends it, the smallest case so far counts.
    """
    emit(PhaseChanged(phase="confirming"))
    patient = max(CONFIRM_DEADLINE, 2 * expected.seconds)
    confirmation = confirm(world, case, expected, deadline=patient)
    if not confirmation.reproduced:
        return Judged(case, expected, confirmation)
    emit(FindingConfirmed(signature=expected.signature, runs=1, reproduced=1))

    best, finished, note = _Smallest(world, case, expected, emit), False, ""
    max_seconds = min(budget.max_seconds, seconds_left())
    if shrinking and max_seconds > 0:
        emit(PhaseChanged(phase="shrinking"))
        try:
            limits = Budget(max_evaluations=budget.max_evaluations, max_seconds=max_seconds)
            finished = shrink(case, best.still_fails, budget=limits).finished
        except Stopped:
            note = "shrinking was interrupted"
        except Exception as error:  # a fault of the shrinker must not cost the finding
            note = f"shrinking failed: {error!r}"
        emit(PhaseChanged(phase="confirming"))

    result = Judged(best.case, best.verdict, Confirmation(), best.evaluations, finished, note)
    if best.case != case:
        rate = confirm(world, best.case, expected, runs=CONFIRM_RUNS)
        if not rate.runs:
            return dataclasses.replace(
                result, confirmation=confirmation, note=f"only the case as found was confirmed; {note}"
            )
        if not rate.flaky:
            return dataclasses.replace(result, confirmation=rate)
        note = f"shrunk to {leaf_count(best.case)} leaf modules it did not repeat; this is the case as found"
        result = Judged(case, expected, Confirmation(), best.evaluations, False, note)
    rate = confirmation + confirm(world, case, expected, runs=CONFIRM_RUNS)
    return dataclasses.replace(result, confirmation=rate)
