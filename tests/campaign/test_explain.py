"""What causes a finding, on worlds where made up mends cure it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from fake_campaign import INFRA, PASS, FakeWorld, divergence, make_case
from mend_files import mend_file
from msgspec.structs import replace

from fuzzshard.campaign.explain import (
    Explanation,
    Likely,
    OnBoth,
    Origin,
    explain,
    judge_explained,
    known_causes,
    unknown_only,
    unknown_part,
)
from fuzzshard.case.case import Case
from fuzzshard.parts.oracle import NOT_REFUSED
from fuzzshard.verdict import Finding, Status, Verdict

CASE = make_case(7)
SHOWN, OTHER = divergence(), divergence("output")
MISSED = Verdict(
    status=Status.DIVERGENCE,
    findings=(
        Finding(
            oracle="expectation",
            engine="ddp",
            observed="no error",
            expected="an error",
            op=1,
            name="marked twice",
            detail=NOT_REFUSED,
        ),
    ),
)
TRIPPED = replace(SHOWN, tripped=("m05",))
REJECTED = Verdict(status=Status.REJECTED)

Verdicts = Callable[[set[str]], Verdict]
"""The verdict on torch with these mends."""


@pytest.fixture(scope="module")
def mends(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Sixty mends that change nothing; a fake world says what they cure."""
    folder = tmp_path_factory.mktemp("mends")
    return tuple(str(mend_file(folder, f"m{n:02}", "def apply(patch): pass")) for n in range(60))


@pytest.fixture(scope="module")
def lifter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A mend with which torch need not refuse what it refuses as it is."""
    folder = tmp_path_factory.mktemp("lifter")
    body = "LIFTS = ('marked twice',)\n\ndef apply(patch): pass"
    return str(mend_file(folder, "lifter", body))


def world(verdict_with: Verdicts) -> FakeWorld:
    return FakeWorld(
        lambda _: verdict_with(set()), [], with_mends=lambda _, mends: verdict_with(set(mends))
    )


def cured_by(*needed: str) -> Verdicts:
    return lambda on: PASS if set(needed) <= on else SHOWN


def ranked(*names: str) -> Likely:
    """Each name half as likely as the one before."""
    return lambda case, signature: {(name,): 0.5**n for n, name in enumerate(names)}


def broken_by(*needed: str) -> Verdicts:
    return lambda on: SHOWN if set(needed) <= on else PASS


@pytest.mark.parametrize("which", [0, 1, 30, 58, 59])
def test_the_one_mend_that_cures_a_finding_is_its_cause(
    mends: tuple[str, ...], which: int
) -> None:
    runs = world(cured_by(mends[which]))
    explained = explain(runs, CASE, mends)
    assert (explained.origin, explained.causes) == (Origin.KNOWN, (mends[which],))
    assert (explained.verdict, explained.known) == (SHOWN, (mends[which],))
    assert len(runs.log) <= 10


@pytest.mark.parametrize("pair", [(0, 1), (0, 59), (17, 40), (58, 59)])
def test_mends_that_cure_it_together_only_are_causes_both(
    mends: tuple[str, ...], pair: tuple[int, int]
) -> None:
    needed = tuple(mends[n] for n in pair)
    assert explain(world(cured_by(*needed)), CASE, mends).known == needed


def test_one_of_two_mends_that_cure_it_is_enough(mends: tuple[str, ...]) -> None:
    either = world(lambda on: PASS if on & {mends[3], mends[9]} else SHOWN)
    assert explain(either, CASE, mends).known == (mends[3],)


def test_what_torch_refuses_on_mended_torch_is_cured(mends: tuple[str, ...]) -> None:
    refused = world(lambda on: REJECTED if mends[5] in on else SHOWN)
    assert explain(refused, CASE, mends).known == (mends[5],)


def test_what_shows_in_spite_of_all_mends_is_new(mends: tuple[str, ...]) -> None:
    explained = explain(world(lambda on: SHOWN), CASE, mends)
    assert (explained.origin, explained.known, explained.verdict) == (Origin.NEW, (), SHOWN)


def test_what_a_known_bug_hides_is_new_and_told_as_mended_torch_shows_it(
    mends: tuple[str, ...],
) -> None:
    explained = explain(world(lambda on: OTHER if mends[5] in on else SHOWN), CASE, mends)
    assert (explained.origin, explained.shown_by_stock) == (Origin.NEW, False)
    assert explained.verdict == OTHER


@pytest.mark.parametrize("lifts_first", [True, False])
@pytest.mark.parametrize("on_mended", [True, False])
def test_a_missed_refusal_is_known_where_a_mend_brings_it_and_another_lifts_it(
    mends: tuple[str, ...], lifter: str, lifts_first: bool, on_mended: bool
) -> None:
    names = (lifter, *mends) if lifts_first else (*mends, lifter)
    runs = world(lambda on: REJECTED if mends[5] in on and lifter not in on else MISSED)
    _, explained = judge_explained(runs, CASE, names, on_mended=on_mended)
    assert (explained.origin, explained.causes) == (Origin.KNOWN, (mends[5],))
    assert explained.verdict == MISSED


def test_a_mend_that_lifts_a_refusal_is_no_cause_of_its_absence(
    mends: tuple[str, ...], lifter: str
) -> None:
    names = (*mends, lifter)
    runs = world(lambda on: PASS if lifter in on else MISSED)
    assert explain(runs, CASE, names).origin is Origin.NEW
    assert explain(runs, CASE, names, mended=PASS, likely=ranked(lifter)).origin is Origin.NEW


def test_what_torch_refuses_a_mend_may_lift_that_says_so(
    mends: tuple[str, ...], lifter: str
) -> None:
    def lifts(which: str) -> FakeWorld:
        return world(lambda on: MISSED if which in on else REJECTED)

    assert judge_explained(lifts(lifter), CASE, (*mends, lifter), on_mended=True)[1].origin is (
        Origin.NONE
    )
    _, explained = judge_explained(lifts(mends[8]), CASE, mends, on_mended=True)
    assert (explained.origin, explained.causes) == (Origin.MEND, (mends[8],))


def test_without_a_finding_nothing_is_asked_of_mends(mends: tuple[str, ...]) -> None:
    passing = world(lambda on: PASS)
    assert explain(passing, CASE, mends) == Explanation(Origin.NONE, PASS)
    assert passing.log == ["run 7"]


def test_likely_causes_are_tried_first(mends: tuple[str, ...]) -> None:
    runs = world(cured_by(mends[40]))
    explained = explain(runs, CASE, mends, likely=ranked(mends[1], mends[40]))
    assert explained.known == (mends[40],)
    assert len(runs.log) == 4  # as it is, with all, and with each of the likely ones
    assert explain(runs, CASE, mends, likely=ranked(mends[1])).known == (mends[40],)


def test_what_is_likelier_than_all_the_rest_is_tried_before_all_mends(
    mends: tuple[str, ...],
) -> None:
    runs = world(cured_by(mends[40]))
    likely = {(mends[40],): 1.0, (mends[1],): 0.5}
    explained = explain(runs, CASE, mends, likely=lambda case, signature: likely)
    assert (explained.known, len(runs.log)) == ((mends[40],), 2)


def test_mends_of_which_no_line_has_run_are_no_causes(mends: tuple[str, ...]) -> None:
    def some_ran(on: set[str]) -> Verdict:
        return replace(PASS, ran=mends[40:42]) if mends[41] in on else SHOWN

    runs = world(some_ran)
    assert explain(runs, CASE, mends).known == (mends[41],)
    assert len(runs.log) == 4  # as it is, with all, and two that found which of two it is


def test_causes_that_hide_one_another_are_found_one_by_one(mends: tuple[str, ...]) -> None:
    """What comes after the first bug says by its signature what its cause may be."""

    def hidden(on: set[str]) -> Verdict:
        return SHOWN if mends[3] not in on else OTHER if mends[44] not in on else PASS

    def likely(case: Case, signature: str) -> dict[tuple[str, ...], float]:
        return {(mends[3 if signature == SHOWN.signature else 44],): 1.0, (mends[9],): 0.9}

    runs = world(hidden)
    assert explain(runs, CASE, mends, likely=likely).known == (mends[3], mends[44])
    assert len(runs.log) == 5  # as it is, with the first, with all, with both, with the second


def test_a_later_finding_of_the_same_kind_is_another_one(mends: tuple[str, ...]) -> None:
    later = divergence()
    later = replace(later, findings=(replace(later.findings[0], op=99),))

    def hidden(on: set[str]) -> Verdict:
        return SHOWN if mends[3] not in on else later if mends[44] not in on else PASS

    runs = world(hidden)
    assert explain(runs, CASE, mends, likely=ranked(mends[3], mends[44])).known == (
        mends[3],
        mends[44],
    )
    assert len(runs.log) <= 6


def test_what_is_less_likely_is_found_in_fewer_runs_than_what_is_not(
    mends: tuple[str, ...],
) -> None:
    likely = ranked(*reversed(mends[:9]))
    counts = []
    for name in (mends[2], mends[33]):
        runs = world(cured_by(name))
        assert explain(runs, CASE, mends, likely=likely).known == (name,)
        counts.append(len(runs.log))
    assert counts[0] < counts[1] <= 18


def test_several_causes_are_found_together_wherever_they_are_ranked(
    mends: tuple[str, ...],
) -> None:
    runs = world(lambda on: PASS if {mends[1], mends[44]} <= {*on} else SHOWN)
    likely = ranked(mends[44], mends[7], mends[1])
    assert explain(runs, CASE, mends, likely=likely).known == (mends[1], mends[44])


@pytest.mark.parametrize(
    ("eager", "compiled"), [(True, 3), (False, 9)], ids=["eager too", "compiled only"]
)
def test_a_compiled_case_is_explained_without_that_if_it_fails_so_too(
    mends: tuple[str, ...], eager: bool, compiled: int
) -> None:
    case, ran = replace(CASE, compile="aot_eager"), []

    def verdict(which: Case, on: Collection[str]) -> Verdict:
        ran.append(which)
        return SHOWN if mends[8] not in on and (eager or which == case) else PASS

    runs = FakeWorld(lambda which: verdict(which, ()), [], with_mends=verdict)
    assert explain(runs, case, mends).known == (mends[8],)
    assert ran.count(case) <= compiled
    assert ran.count(CASE) == len(ran) - ran.count(case) > 0


def test_what_mends_do_not_cure_without_compilation_is_explained_with_it(
    mends: tuple[str, ...],
) -> None:
    case = replace(CASE, compile="aot_eager")

    def verdict(which: Case, on: Collection[str]) -> Verdict:
        return PASS if mends[8] in on and which == case else SHOWN

    runs = FakeWorld(lambda which: verdict(which, ()), [], with_mends=verdict)
    assert explain(runs, case, mends).known == (mends[8],)


@pytest.mark.parametrize("which", [0, 33, 59])
def test_what_only_mended_torch_shows_is_a_defect_of_the_mend_that_it_takes(
    mends: tuple[str, ...], which: int
) -> None:
    runs = world(broken_by(mends[which]))
    explained = explain(runs, CASE, mends, mended=SHOWN)
    assert (explained.origin, explained.causes, explained.known) == (
        Origin.MEND,
        (mends[which],),
        (),
    )
    assert explained.verdict.status is Status.INFRA
    assert mends[which] in explained.verdict.message


def test_what_mended_torch_shows_once_costs_one_run_more_and_blames_no_mend(
    mends: tuple[str, ...],
) -> None:
    passing = world(lambda on: PASS)
    explained = explain(passing, CASE, mends, stock=PASS, mended=SHOWN)
    assert (explained.origin, explained.causes) == (Origin.MEND, ())
    seen = f"once and not again: {SHOWN.findings[0].observed}"
    assert explained.verdict.message == f"{SHOWN.signature} shows with mends {seen}"
    assert len(passing.log) == 1


def test_what_mended_torch_shows_once_hides_no_known_bug(mends: tuple[str, ...]) -> None:
    runs = world(cured_by(mends[8]))
    explained = explain(runs, CASE, mends, stock=SHOWN, mended=OTHER)
    assert (explained.known, explained.verdict) == ((mends[8],), SHOWN)
    assert len(runs.log) <= 10


def test_a_mend_is_wrong_where_the_others_cure_a_known_bug(mends: tuple[str, ...]) -> None:
    def runs(on: tuple[str, ...]) -> Verdict:
        return OTHER if mends[8] in on else PASS if mends[5] in on else SHOWN

    explained = explain(world(runs), CASE, mends)
    assert (explained.origin, explained.causes) == (Origin.MEND, (mends[8],))


def test_two_mends_that_harm_together_are_both_named(mends: tuple[str, ...]) -> None:
    explained = explain(world(broken_by(mends[2], mends[50])), CASE, mends, mended=SHOWN)
    assert (explained.origin, explained.causes) == (Origin.MEND, (mends[2], mends[50]))


def test_a_tripwire_knows_a_finding_that_nothing_cures(mends: tuple[str, ...]) -> None:
    tripping = world(lambda on: TRIPPED if on else SHOWN)
    explained = explain(tripping, CASE, mends)
    assert (explained.origin, explained.known, explained.verdict) == (
        Origin.KNOWN,
        (mends[5],),
        SHOWN,
    )


def test_a_tripwire_that_no_mend_has_knows_nothing(mends: tuple[str, ...]) -> None:
    mistyped = world(lambda on: replace(SHOWN, tripped=("typo",)) if on else SHOWN)
    assert explain(mistyped, CASE, mends).origin is Origin.NEW


def test_a_tripwire_that_a_passing_case_trips_says_nothing(mends: tuple[str, ...]) -> None:
    assert explain(world(lambda on: PASS), CASE, mends, mended=TRIPPED).origin is Origin.NONE
    cured = world(lambda on: replace(cured_by(mends[9])(on), tripped=TRIPPED.tripped))
    assert explain(cured, CASE, mends).known == (mends[9],)


def test_a_signature_knows_what_has_it(mends: tuple[str, ...], tmp_path: Path) -> None:
    body = "KIND = 'signature'\nSIGNATURES = ('divergence/*/gradient', 'hang/*')"
    named = str(mend_file(tmp_path, "named", body))
    assert explain(world(lambda on: SHOWN), CASE, (*mends, named)).known == (named,)
    assert explain(world(lambda on: OTHER), CASE, (*mends, named)).origin is Origin.NEW


def test_a_machine_that_fails_on_mended_torch_makes_nothing_known(mends: tuple[str, ...]) -> None:
    explained = explain(world(lambda on: INFRA if on else SHOWN), CASE, mends)
    assert explained.known == ()
    assert explained.verdict.status is Status.INFRA


@pytest.mark.parametrize(
    ("on_mended", "first"), [(True, ["run 7 mended", "run 7"]), (False, ["run 7", "run 7 mended"])]
)
def test_a_suspicion_is_run_on_the_other_torch_too(
    mends: tuple[str, ...], on_mended: bool, first: list[str]
) -> None:
    runs = world(lambda on: SHOWN)
    case, explained = judge_explained(runs, CASE, mends, on_mended=on_mended)
    assert (case, explained.origin, runs.log) == (CASE, Origin.NEW, first)


def test_what_passes_runs_once(mends: tuple[str, ...]) -> None:
    runs = world(cured_by(mends[5]))
    assert judge_explained(runs, CASE, mends, on_mended=True)[1].origin is Origin.NONE
    assert runs.log == ["run 7 mended"]


def test_likely_causes_are_asked_for_by_case_and_signature(mends: tuple[str, ...]) -> None:
    runs, asked = world(cured_by(mends[5])), []

    def likely(case: Case, signature: str) -> dict[tuple[str, ...], float]:
        asked.append((case, signature))
        return {(mends[5],): 1.0}

    _, explained = judge_explained(runs, CASE, mends, on_mended=False, likely=likely)
    assert (explained.known, asked, len(runs.log)) == ((mends[5],), [(CASE, SHOWN.signature)], 2)


def test_without_mends_nothing_is_known_and_nothing_runs() -> None:
    runs = world(lambda on: PASS)
    assert known_causes((), runs, CASE, SHOWN) == ()
    assert runs.log == []


@pytest.mark.parametrize(
    ("stock", "mended", "strict", "loose"),
    [
        (SHOWN, PASS, PASS, PASS),
        (SHOWN, SHOWN, SHOWN, SHOWN),
        (PASS, SHOWN, PASS, PASS),
        (OTHER, SHOWN, PASS, SHOWN),
        (SHOWN, INFRA, INFRA, INFRA),
        (SHOWN, TRIPPED, PASS, PASS),
    ],
    ids=["cured", "both", "only mended", "different", "infra", "tripped"],
)
def test_a_runner_on_both_shows_what_no_known_bug_is(
    mends: tuple[str, ...], stock: Verdict, mended: Verdict, strict: Verdict, loose: Verdict
) -> None:
    runs = world(lambda on: mended if on else stock)
    for strictly, expected in ((True, strict), (False, loose)):
        seen = OnBoth(runs, mends, strict=strictly).run(CASE)
        assert (seen.status, seen.findings) == (expected.status, expected.findings)


def test_what_is_made_of_a_finding_has_to_show_it_where_it_showed(mends: tuple[str, ...]) -> None:
    """With a finding that stock torch shows, its smaller cases have to show it there; else a bug
    hides it.
    """

    def judged(case: Case, on: set[str]) -> Verdict:
        return SHOWN if on or case.seed == 1 else OTHER

    runs = FakeWorld(lambda c: judged(c, set()), [], with_mends=lambda c, on: judged(c, set(on)))
    smaller = make_case(0)
    shown_by_both = unknown_only(runs, make_case(1), SHOWN, mends)(runs)
    assert shown_by_both.run(smaller).status is Status.PASS
    hidden = unknown_only(runs, make_case(2), SHOWN, mends)(runs)
    assert hidden.run(smaller) == SHOWN
    assert unknown_only(runs, make_case(1), SHOWN, ())(runs) is runs


def test_a_lifted_refusal_is_nothing_that_a_known_bug_hides(
    mends: tuple[str, ...], lifter: str
) -> None:
    runs = world(lambda on: MISSED if on else OTHER)
    assert OnBoth(runs, mends, strict=False).run(CASE) == MISSED
    assert OnBoth(runs, (*mends, lifter), strict=False).run(CASE).status is Status.PASS


def test_what_is_made_of_a_missed_refusal_never_becomes_a_known_bug_that_a_mend_hides(
    mends: tuple[str, ...], lifter: str
) -> None:
    def judged(case: Case, on: set[str]) -> Verdict:
        cured = case.seed == 0 and mends[5] in on and lifter not in on
        return REJECTED if cured else MISSED

    runs = FakeWorld(lambda c: judged(c, set()), [], with_mends=lambda c, on: judged(c, set(on)))
    names = (*mends, lifter)
    expected, runner = unknown_part(runs, make_case(1), MISSED, names)
    assert expected == MISSED
    for only in (runner, unknown_only(runs, make_case(1), MISSED, names)):
        assert only(runs).run(make_case(1)) == MISSED
        assert not only(runs).run(make_case(0)).status.is_finding
    assert unknown_part(runs, make_case(0), MISSED, names)[1](runs) is runs


@pytest.mark.parametrize(
    ("stock", "mended", "expected", "both"),
    [
        (SHOWN, PASS, SHOWN, False),
        (SHOWN, TRIPPED, SHOWN, False),
        (SHOWN, SHOWN, SHOWN, True),
        (OTHER, SHOWN, SHOWN, True),
    ],
    ids=["cured", "tripped", "shown by both", "hidden by a known bug"],
)
def test_what_mends_do_not_cure_is_shrunk_to_what_they_do_not_cure(
    mends: tuple[str, ...], stock: Verdict, mended: Verdict, expected: Verdict, both: bool
) -> None:
    runs = world(lambda on: mended if on else stock)
    verdict, runner = unknown_part(runs, CASE, stock, mends)
    assert verdict == expected
    assert isinstance(runner(runs), OnBoth) is both
