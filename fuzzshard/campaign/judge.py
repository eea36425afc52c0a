"""Is it a finding, and does it repeat on fresh ranks? Used wherever cases are run; it saves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fuzzshard.analysis.dtypes import lifted
from fuzzshard.analysis.schedule_state import engines_train_more_from
from fuzzshard.campaign.options import CONFIRM_RUNS
from fuzzshard.campaign.smallest import outcome_text
from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.errors import FuzzshardError
from fuzzshard.identity import shows
from fuzzshard.runner import Runner
from fuzzshard.verdict import STRICTNESS, Status, Verdict

FLAKY_RUNS = 10
"""As many at least once one of them shows something else: a rate out of three says little."""


class Stopped(Exception):
    """Raised by a runner in place of a verdict when whoever owns it wants no more runs."""


def judge(
    world: Runner, case: Case, *, deadline: float | None = None, fresh: bool = False
) -> Verdict:
    """Return the verdict of one run, with ``fresh`` on fresh ranks; INFRA is tried once more on
    fresh ranks.
    """
    verdict = _run(world, case, deadline, fresh)
    return _run(world, case, deadline, True) if verdict.status is Status.INFRA else verdict


def judge_clearly(world: Runner, case: Case) -> tuple[Case, Verdict]:
    """Return the verdict of one run, and the case that it is about.

    That is the case with everything observed where only losses were, unless engines are to train
    more than the reference then: a loss says little about what is wrong. And it is the case in
    higher precision where that is wrong at an earlier op: low precision is so wide that a wrong
    gradient may first be seen in the step that it makes.
    """
    verdict = judge(world, case)
    trains_alike = engines_train_more_from(case) == len(case.schedule)
    if verdict.status is Status.DIVERGENCE and case.observe == "losses" and trains_alike:
        whole = msgspec.structs.replace(case, observe="everything")
        closer, nearer = judge_clearly(world, whole)
        if nearer.status.is_finding:
            return closer, nearer
    seen = verdict.findings[0] if verdict.status is Status.DIVERGENCE else None
    if seen and seen.comparison == "precision" and (precise_case := lifted(case)) != case:
        clearer, precise = judge_clearly(world, precise_case)
        if precise.status is Status.DIVERGENCE and precise.findings[0].op < seen.op:
            return clearer, precise
    return case, verdict


def _run(world: Runner, case: Case, deadline: float | None, fresh: bool) -> Verdict:
    try:
        if fresh:
            world.restart()
        return world.run(case, deadline=deadline)
    except FuzzshardError as error:
        return Verdict(status=Status.INFRA, message=str(error))


def same_finding(verdict: Verdict, expected: Verdict) -> bool:
    """Return whether ``verdict`` is the finding ``expected``: the same signature, by a comparison
    as strict.

    A looser comparison would let shrinking slip from a logic error into rounding.
    """
    if not verdict.status.is_finding or not shows(verdict, expected.signature):
        return False
    if expected.status is not Status.DIVERGENCE:
        return True
    return (
        STRICTNESS[verdict.findings[0].comparison] >= STRICTNESS[expected.findings[0].comparison]
    )


def confirm(
    world: Runner,
    case: Case,
    expected: Verdict,
    *,
    runs: int = CONFIRM_RUNS,
    deadline: float | None = None,
    on_run: Callable[[int, int], None] = lambda done, of: None,
) -> Confirmation:
    """Runs ``case`` on fresh ranks ``runs`` times, and :data:`FLAKY_RUNS` times if one shows
    something else.

    Runs without a verdict (INFRA) do not count. ``deadline`` is that of the first run. Before each
    run ``on_run`` hears how many there were, and of how many. Raises :class:`Stopped` when no more
    runs are wanted: part of them would be another rate than the whole.
    """
    seen = Confirmation()
    for number in range(max(runs, FLAKY_RUNS)):
        if number >= runs and not seen.flaky:
            break
        on_run(number, max(runs, FLAKY_RUNS) if seen.flaky else runs)
        verdict = judge(world, case, deadline=None if number else deadline, fresh=True)
        if verdict.status is not Status.INFRA:
            reproduced = same_finding(verdict, expected)
            seen = seen.plus(outcome_text(verdict), reproduced=reproduced)
    return seen
