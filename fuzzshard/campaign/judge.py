"""From a suspicion to a result: does a finding repeat on fresh ranks, and how small a case shows it.

Used by the campaign, by ``fuzzshard shrink`` and by the benchmarks; it saves nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from fuzzshard.campaign.culprits import find_culprits
from fuzzshard.campaign.events import Event, FindingConfirmed, PhaseChanged, ShrinkProgress
from fuzzshard.campaign.smallest import Smallest, outcome_text
from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import finer, is_low_precision
from fuzzshard.case.order import leaf_count
from fuzzshard.corpus.entry import Confirmation, Culprit
from fuzzshard.errors import FuzzshardError
from fuzzshard.shrink import Budget, shrink
from fuzzshard.verdict import Status, Verdict

CONFIRM_DEADLINE = 30.0
"""Seconds that the first confirming run may take, and at least twice the finding's own time: a slow
machine is no hang."""
CONFIRM_RUNS = 3
"""Runs on fresh ranks, of the case as found and of the final one; the rate is kept in the corpus entry."""
FLAKY_RUNS = 10
"""As many at least once one of them shows something else: a rate out of three says little."""
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
class Judged:
    """What is known about a finding in the end: its smallest ``case``, with the verdict that shows it.

    ``note`` says what cut the work short or went wrong on the way; ``culprits`` are of the shrunk case.
    """

    case: Case
    verdict: Verdict
    confirmation: Confirmation
    evaluations: int = 0
    finished: bool = False
    note: str = ""
    culprits: tuple[Culprit, ...] = ()


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
    higher precision: then the case in that precision is the finding. So is the case with everything observed
    where only losses were: a loss says little about what is wrong.
    """
    verdict = judge(world, case)
    if verdict.status is Status.DIVERGENCE and case.observe == "losses":
        whole = msgspec.structs.replace(case, observe="everything")
        closer, nearer = judge_clearly(world, whole)
        if nearer.status.is_finding:
            return closer, nearer
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
    world: Runner, case: Case, expected: Verdict, *, runs: int = CONFIRM_RUNS, deadline: float | None = None
) -> Confirmation:
    """Runs ``case`` on fresh ranks ``runs`` times, and :data:`FLAKY_RUNS` times if one shows something else.

    Runs without a verdict (INFRA, stopped) do not count. ``deadline`` is that of the first run.
    """
    seen = Confirmation()
    try:
        for number in range(max(runs, FLAKY_RUNS)):
            if number >= runs and not seen.flaky:
                break
            verdict = judge(world, case, deadline=None if number else deadline, fresh=True)
            if verdict.status is not Status.INFRA:
                seen = seen.plus(outcome_text(verdict), reproduced=same_finding(verdict, expected))
    except Stopped:
        pass
    return seen


def confirm_and_shrink(
    world: Runner,
    case: Case,
    expected: Verdict,
    *,
    emit: Callable[[Event], None] = lambda event: None,
    keep: Callable[[Case, Verdict], None] = lambda case, verdict: None,
    runs: int = CONFIRM_RUNS,
    shrinking: bool = True,
    budget: Budget = SHRINK_BUDGET,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Judged:
    """Confirms the finding ``expected`` of ``case``, shrinks it, and confirms the result, with ``runs`` each.

    A finding that does not come back is returned as it is, with a confirmation that is ``absent``. Shrinking
    is bounded by ``budget`` and by ``seconds_left()``; whatever ends it, the smallest case so far counts.
    ``keep`` is called with each smaller case: saved there, it survives whatever happens to this process.
    """
    emit(PhaseChanged(phase="confirming"))
    patient = max(CONFIRM_DEADLINE, 2 * expected.seconds)
    confirmation = confirm(world, case, expected, runs=runs, deadline=patient)
    if not confirmation.reproduced:
        return Judged(case, expected, confirmation)
    emit(
        FindingConfirmed(
            signature=expected.signature, runs=confirmation.runs, reproduced=confirmation.reproduced
        )
    )
    result = Judged(case, expected, confirmation)
    if shrinking and seconds_left() > 0:
        emit(PhaseChanged(phase="shrinking"))
        result = _shrink(
            world,
            result,
            emit,
            keep,
            dataclasses.replace(budget, max_seconds=min(budget.max_seconds, seconds_left())),
        )
        emit(PhaseChanged(phase="confirming"))
    if result.case == case:
        return result
    rate = confirm(world, result.case, expected, runs=runs)
    if not rate.runs:
        return dataclasses.replace(result, note=_join(result.note, "only the case as found was confirmed"))
    if rate.absent:
        note = (
            f"shrunk to {leaf_count(result.case)} leaf modules it did not repeat; this is the case as found"
        )
        return Judged(case, expected, confirmation, result.evaluations, False, note)
    note = f"as found: {confirmation.text()}" if confirmation.flaky else ""
    return dataclasses.replace(result, confirmation=rate, note=_join(result.note, note))


def _shrink(
    world: Runner,
    found: Judged,
    emit: Callable[[Event], None],
    keep: Callable[[Case, Verdict], None],
    budget: Budget,
) -> Judged:
    """``found`` with its case made smaller; its confirmation is still that of the case as found."""
    signature = found.verdict.signature

    def on_smaller(best: Smallest) -> None:
        keep(best.case, best.verdict)
        emit(ShrinkProgress(signature=signature, evaluations=best.evaluations, leaves=leaf_count(best.case)))

    best = Smallest(
        found.case,
        found.verdict,
        found.confirmation,
        run=lambda candidate: judge(world, candidate),
        shows=lambda verdict: same_finding(verdict, found.verdict),
        on_smaller=on_smaller,
    )
    finished, note = False, ""
    culprits: tuple[Culprit, ...] = ()
    try:
        finished = shrink(found.case, best.still_fails, budget=budget).finished
        culprits = find_culprits(best)
    except Stopped:
        note = "shrinking was interrupted"
    except Exception as error:  # a fault of the shrinker must not cost the finding
        note = f"shrinking failed: {error!r}"
    return Judged(best.case, best.verdict, found.confirmation, best.evaluations, finished, note, culprits)


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))
