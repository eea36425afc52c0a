"""From a suspicion to a result: does a finding repeat on fresh ranks, how small a case shows it,
and where.

Used by the campaign, by ``fuzzshard shrink`` and by the benchmarks; it saves nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping

from fuzzshard.analysis.needs import needs_cuda
from fuzzshard.analysis.order import leaf_count, size_order
from fuzzshard.campaign.judge import Stopped, confirm, judge, same_finding
from fuzzshard.campaign.options import CONFIRM_RUNS
from fuzzshard.campaign.smallest import Smallest
from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode
from fuzzshard.corpus.entry import Confirmation, Culprit
from fuzzshard.errors import FuzzshardError
from fuzzshard.events import Event, FindingConfirmed, PhaseChanged, ShrinkProgress
from fuzzshard.runner import Runner, StartWorld
from fuzzshard.shrink import Budget, shrink
from fuzzshard.shrink.culprits import culprits
from fuzzshard.verdict import Status, Verdict

CONFIRM_DEADLINE = 30.0
"""Seconds that the first confirming run may take, and at least twice the finding's own time: a
slow machine is no hang."""
SHRINK_BUDGET = Budget(max_evaluations=300, max_seconds=180.0)
RUNS_BETWEEN_PROGRESS = 5
"""After so many runs of shrinking it is told how far it is, also where nothing became smaller."""

Keep = Callable[[Case, Verdict, Mapping[str, str]], None]
"""Saves a case, its verdict and what its ranks ran on."""


@dataclasses.dataclass(frozen=True)
class Judged:
    """What is known about a finding in the end: its smallest ``case``, with the verdict that shows
    it.

    ``info`` is of the ranks that showed it. ``note`` says what cut the work short or went wrong on
    the way; ``culprits`` are of the shrunk case. ``cut_off``: an interrupt or a limit of time came
    before the case was shrunk and confirmed; it goes on from ``case``.
    """

    case: Case
    verdict: Verdict
    confirmation: Confirmation
    info: Mapping[str, str]
    evaluations: int = 0
    finished: bool = False
    cut_off: bool = False
    note: str = ""
    culprits: tuple[Culprit, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Terms:
    """How findings are confirmed and shrunk; see :func:`confirm_and_shrink`."""

    emit: Callable[[Event], None]
    keep: Keep
    runs: int
    shrinking: bool
    budget: Budget
    seconds_left: Callable[[], float]


def confirm_and_shrink(
    world: Runner,
    case: Case,
    expected: Verdict,
    *,
    on_cpu: StartWorld | None = None,
    runner: Callable[[Runner], Runner] = lambda world: world,
    emit: Callable[[Event], None] = lambda event: None,
    keep: Keep = lambda case, verdict, info: None,
    runs: int = CONFIRM_RUNS,
    shrinking: bool = True,
    budget: Budget = SHRINK_BUDGET,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Judged:
    """Confirms the finding ``expected`` of ``case``, shrinks it, and confirms the result, with
    ``runs`` each, all by the ``runner`` of a world.

    A finding that does not come back is returned as it is, with a confirmation that is ``absent``;
    one that was cut off before that was known, with no runs. Shrinking is bounded by ``budget``
    and by ``seconds_left()``; whatever ends it, the smallest case so far counts. ``keep`` is
    called with each smaller case: saved there, it survives whatever happens to this process.

    With ``on_cpu``, a finding that CPU ranks show as well is from then on one of theirs: before
    shrinking, or else the shrunk case.
    """
    terms = _Terms(emit, keep, runs, shrinking, budget, seconds_left)
    if on_cpu is not None and needs_cuda(case) is None:
        with on_cpu(case.mesh.size) as started:
            other = runner(started)
            if (shown := _always_shown(other, case, expected, runs)) is not None:
                seen, _ = shown
                return _with_note(_confirmed_and_shrunk(other, case, seen, terms), _ON_CPU)
    judged = _confirmed_and_shrunk(runner(world), case, expected, terms)
    small = judged.case
    if on_cpu is None or small == case or needs_cuda(small) is not None:
        return judged
    try:
        with on_cpu(small.mesh.size) as started:
            shown = _always_shown(runner(started), small, judged.verdict, runs)
            info = started.info
    except Stopped:  # what CUDA ranks have shown stands until then
        return dataclasses.replace(judged, cut_off=True)
    if shown is None:
        return judged
    seen, rate = shown
    return _with_note(
        dataclasses.replace(judged, verdict=seen, confirmation=rate, info=info), _ON_CPU
    )


_ON_CPU = "found on CUDA; the CPU shows it as well"


def _always_shown(
    world: Runner, case: Case, expected: Verdict, runs: int
) -> tuple[Verdict, Confirmation] | None:
    """The verdict of ``world`` and its rate, if it shows the finding in every one of ``runs``.

    None also without ranks.
    """
    try:
        verdict = judge(world, case)
        if not same_finding(verdict, expected):
            return None
        rate = confirm(world, case, verdict, runs=runs)
    except FuzzshardError:
        return None
    return (verdict, rate) if rate.reproduced == rate.runs > 0 else None


def _confirmed_and_shrunk(world: Runner, case: Case, expected: Verdict, terms: _Terms) -> Judged:
    emit, runs, signature = terms.emit, terms.runs, expected.signature

    def on_run(done: int, of: int) -> None:
        emit(PhaseChanged(phase="confirming", signature=signature, done=done, of=of))

    patient = max(CONFIRM_DEADLINE, 2 * expected.seconds)
    try:
        confirmation = confirm(world, case, expected, runs=runs, deadline=patient, on_run=on_run)
    except Stopped:
        return Judged(case, expected, Confirmation(), world.info, cut_off=True)
    found = Judged(case, expected, confirmation, world.info)
    if not confirmation.reproduced:
        return found
    emit(
        FindingConfirmed(
            signature=signature,
            runs=confirmation.runs,
            reproduced=confirmation.reproduced,
        )
    )
    if not terms.shrinking:
        return found
    if terms.seconds_left() <= 0:
        return dataclasses.replace(found, cut_off=True)
    emit(PhaseChanged(phase="shrinking", signature=signature))
    result = _shrunk(world, found, terms)
    if result.cut_off or result.case == case:
        return result
    try:
        rate = confirm(world, result.case, expected, runs=runs, on_run=on_run)
    except Stopped:
        rate = Confirmation()
    if not rate.runs:
        unconfirmed = dataclasses.replace(result, cut_off=True)
        return _with_note(unconfirmed, "only the case as found was confirmed")
    if rate.absent:
        note = (
            f"shrunk to {leaf_count(result.case)} leaf modules it did not repeat; this is the "
            "case as found"
        )
        return dataclasses.replace(found, evaluations=result.evaluations, note=note)
    note = f"as found: {confirmation.text()}" if confirmation.flaky else ""
    return _with_note(dataclasses.replace(result, confirmation=rate), note)


def _shrunk(world: Runner, found: Judged, terms: _Terms) -> Judged:
    """``found`` with its case made smaller; its confirmation is still that of the case as
    found.
    """
    seconds = min(terms.budget.max_seconds, terms.seconds_left())
    budget = dataclasses.replace(terms.budget, max_seconds=seconds)
    terms = dataclasses.replace(terms, budget=budget)
    best = Smallest(
        found.case,
        found.verdict,
        found.confirmation,
        run=functools.partial(judge, world),
        shows=lambda verdict: same_finding(verdict, found.verdict),
        on_smaller=functools.partial(_on_smaller, found, terms),
        on_tried=functools.partial(_on_tried, found, terms),
    )
    finished, cut_off, note = False, False, ""
    culprits: tuple[Culprit, ...] = ()
    try:
        shrunk = shrink(found.case, best.still_fails, budget=budget, on_progress=best.take)
        finished = shrunk.finished
        cut_off = not finished and terms.seconds_left() <= 0
        culprits = () if cut_off else find_culprits(best)
    except Stopped:
        cut_off, note = True, "shrinking was interrupted"
    except Exception as error:  # a fault of the shrinker must not cost the finding
        note = f"shrinking failed: {error!r}"
    return dataclasses.replace(
        found,
        case=best.case,
        verdict=best.verdict,
        evaluations=best.evaluations,
        finished=finished,
        cut_off=cut_off,
        note=note,
        culprits=culprits,
    )


def _on_smaller(found: Judged, terms: _Terms, best: Smallest) -> None:
    terms.keep(best.case, best.verdict, found.info)
    _tell_progress(found, terms, best)


def _on_tried(found: Judged, terms: _Terms, best: Smallest) -> None:
    if best.evaluations % RUNS_BETWEEN_PROGRESS == 0:
        _tell_progress(found, terms, best)


def _tell_progress(found: Judged, terms: _Terms, best: Smallest) -> None:
    most, seconds = terms.budget.max_evaluations, terms.budget.max_seconds
    terms.emit(
        ShrinkProgress(
            signature=found.verdict.signature,
            evaluations=best.evaluations,
            leaves=leaf_count(best.case),
            max_evaluations=most if most < sys.maxsize else None,
            max_seconds=seconds if math.isfinite(seconds) else None,
        )
    )


def _with_note(judged: Judged, note: str) -> Judged:
    return dataclasses.replace(judged, note="; ".join(filter(None, (judged.note, note))))


MOST_CULPRITS = 40
MOST_EVALUATIONS = 30
MOST_SECONDS = 20.0
"""Limits for candidates that shrinking did not come to; once it has finished there are hardly
any.
"""


def find_culprits(best: Smallest) -> tuple[Culprit, ...]:
    """Return for every simplification of the smallest case that makes the finding go away, what is
    seen instead.

    The reducer has run nearly all of them: that none of them fails is what makes the case minimal.
    Those that gave no verdict are left out.
    """
    minimal, size = best.case, size_order(best.case)
    most, until = best.evaluations + MOST_EVALUATIONS, time.monotonic() + MOST_SECONDS

    def outcome_of(_: str, candidate: Case) -> str | None:
        if (key := encode(candidate)) not in best.tried:
            over = best.evaluations >= most or time.monotonic() >= until
            if over or size_order(candidate) >= size:
                return None
            best.still_fails(candidate)
        outcome, fails = best.tried[key]
        return None if fails or outcome == Status.INFRA else outcome

    return tuple(itertools.islice(culprits(minimal, outcome_of), MOST_CULPRITS))
