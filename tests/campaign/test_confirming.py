"""Findings that come back only sometimes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from fake_campaign import (
    INFRA,
    PASS,
    FakeWorld,
    campaign,
    divergence,
    make_case,
    shrink_seed_and_norm,
)

from fuzzshard.campaign.judge import FLAKY_RUNS, confirm
from fuzzshard.campaign.reduce import confirm_and_shrink
from fuzzshard.campaign.smallest import ERROR, MAX_RUNS, RateTest
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.store import entry_files
from fuzzshard.events import FindingConfirmed, FindingSaved
from fuzzshard.verdict import Verdict


def world(verdicts: Callable[[Case], Verdict]) -> FakeWorld:
    return FakeWorld(verdicts, [])


def taking_turns(*verdicts: Verdict) -> Callable[[Case], Verdict]:
    turns = itertools.cycle(verdicts)
    return lambda case: next(turns)


def by_chance(rates: dict[Case, float], seed: int) -> Callable[[Case], Verdict]:
    dice = random.Random(seed)
    return lambda case: divergence() if dice.random() < rates.get(case, 0.0) else PASS


def decided(rate: float, true_rate: float, seed: int) -> RateTest:
    test, dice = RateTest(rate), random.Random(seed)
    while test.holds is None:
        test.add(shown=dice.random() < true_rate)
    return test


def test_a_finding_is_run_as_often_as_asked_for_on_fresh_ranks() -> None:
    always = world(lambda case: divergence())
    assert confirm(always, make_case(), divergence(), runs=5) == Confirmation(runs=5, reproduced=5)
    assert always.log.count("restart") == 5


def test_one_that_stays_away_once_gets_more_runs_and_says_what_the_others_showed() -> None:
    turns = taking_turns(divergence(), PASS, divergence("output"))
    seen = confirm(world(turns), make_case(), divergence(), runs=3)
    assert (seen.runs, seen.reproduced) == (FLAKY_RUNS, 4)
    assert seen.others == {"PASS": 3, "divergence/fully_shard/output": 3}
    assert seen.text() == "flaky, 4 of 10 runs (PASS in 3, divergence/fully_shard/output in 3)"


def test_runs_without_a_verdict_do_not_count() -> None:
    # Each one is tried again on fresh ranks.
    turns = taking_turns(divergence(), INFRA, INFRA, divergence())
    assert confirm(world(turns), make_case(), divergence(), runs=3) == Confirmation(
        runs=2, reproduced=2
    )


@pytest.mark.parametrize("rate", [0.4, 0.6, 0.9])
def test_the_rate_test_errs_as_rarely_as_it_says(rate: float) -> None:
    same, half = ([decided(rate, true, seed) for seed in range(300)] for true in (rate, rate / 2))
    slack = 0.05  # for 300 tests, and for those that end at MAX_RUNS
    assert sum(test.holds is True for test in half) / 300 <= ERROR + slack
    assert sum(test.holds is False for test in same) / 300 <= ERROR + slack
    assert max(test.runs for test in (*same, *half)) <= MAX_RUNS


def test_a_flaky_finding_shrinks_to_what_shows_it_half_as_often_at_least(monkeypatch) -> None:
    found, good, bad = make_case(5, norm=True), make_case(5), make_case(0)
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)
    for seed in range(5):
        rates = {found: 0.7, good: 1.0, bad: 0.05}
        judged = confirm_and_shrink(world(by_chance(rates, seed)), found, divergence(), runs=10)
        assert judged.case == good
        assert judged.note.startswith("as found: flaky")


def test_a_finding_that_always_shows_has_one_run_for_each_candidate(monkeypatch) -> None:
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)
    always = world(lambda case: divergence())
    judged = confirm_and_shrink(always, make_case(5, norm=True), divergence(), runs=2)
    assert judged.case == make_case(0)
    tried = [line for line in always.log if line.startswith("run")]
    assert len(tried) == 2 + judged.evaluations + 2


def test_a_flaky_finding_has_its_rate_in_the_events_the_entry_and_the_summary(tmp_path) -> None:
    turns = taking_turns(PASS, divergence())
    ran = campaign(
        tmp_path, lambda case: PASS if case.seed != 2 else turns(case), max_cases=5, confirm=4
    )
    if not ran.of(FindingSaved):  # the first of the two turns fell to the stream
        ran = campaign(
            tmp_path, lambda case: PASS if case.seed != 2 else turns(case), max_cases=5, confirm=4
        )
    (confirmed,) = ran.of(FindingConfirmed)
    assert (confirmed.runs, confirmed.reproduced) == (10, 5)
    (saved,) = ran.of(FindingSaved)
    assert (saved.runs, saved.reproduced, saved.others) == (10, 5, {"PASS": 5})
    (file,) = entry_files([tmp_path])
    assert read_entry(file).flaky
    assert read_entry(file).confirmed == Confirmation(runs=10, reproduced=5, others={"PASS": 5})
    assert [known.rate for known in ran.finished.findings] == ["flaky, 5 of 10 runs (PASS in 5)"]
