"""Cases with the cause of a known finding run rarely, and the finding is looked at again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_campaign import PASS, Ran, campaign, divergence, make_case, numbered

from fuzzshard.campaign.events import (
    CaseHeldBack,
    CaseJudged,
    FindingFound,
    FindingGone,
    FindingHit,
    FindingQuarantined,
    FindingSaved,
    QuarantineRefused,
)
from fuzzshard.campaign.quarantine import LEAST_HITS, LEAST_SAMPLE, REVISIT_AFTER
from fuzzshard.case.case import Case
from fuzzshard.verdict import Verdict


def one_in(count: int) -> Callable[..., Iterator[Case]]:
    """A stream in which every ``count``-th case has a LayerNorm and another mesh: two features more."""

    def case_of(index: int) -> Case:
        special = index % count == 0
        return make_case(index, norm=special, ranks=3 if special else 2)

    return numbered(case_of)


def fails_with_a_norm(case: Case) -> Verdict:
    return divergence() if len(case.model.children) > 1 else PASS


def held_back(ran: Ran) -> list[int]:
    return [event.index for event in ran.of(CaseHeldBack)]


def test_an_easy_finding_is_held_back_but_for_one_case_in_twenty(tmp_path):
    ran = campaign(tmp_path, fails_with_a_norm, cases=one_in(5), max_cases=1000, seed=1)
    (quarantined,) = ran.of(FindingQuarantined)
    assert quarantined.share == pytest.approx(0.2, abs=0.02)
    assert {"leaf:layer_norm", "mesh:3"} <= set(quarantined.cause)
    (known,) = ran.finished.findings
    assert known.held_back == len(held_back(ran))
    assert known.held_back + known.hits == 200
    before = [event.index for event in ran.of(FindingHit) if event.index < held_back(ran)[0]]
    assert known.hits == 1 + len(before) + known.let_through
    assert 2 <= known.let_through <= 20
    assert ran.finished.cases == 1000 - known.held_back
    assert all(index % 5 == 0 for index in held_back(ran))


def test_nothing_is_held_back_before_it_was_seen_often_enough(tmp_path):
    ran = campaign(tmp_path, fails_with_a_norm, cases=one_in(5), max_cases=1000, seed=1)
    first = held_back(ran)[0]
    assert first >= LEAST_SAMPLE
    assert sum(hit.index < first for hit in ran.of(FindingHit)) + 1 >= LEAST_HITS


def test_equal_seeds_hold_back_the_same_cases(tmp_path):
    first, second = (
        campaign(tmp_path / name, fails_with_a_norm, cases=one_in(5), max_cases=400, seed=7) for name in "ab"
    )
    other = campaign(tmp_path / "c", fails_with_a_norm, cases=one_in(5), max_cases=400, seed=8)
    assert held_back(first) == held_back(second) != held_back(other)


def test_without_quarantine_every_case_runs(tmp_path):
    ran = campaign(tmp_path, fails_with_a_norm, cases=one_in(5), max_cases=300, quarantine=False)
    assert not held_back(ran)
    assert ran.finished.cases == 300


def test_a_cause_that_much_of_the_stream_has_holds_nothing_back(tmp_path):
    ran = campaign(tmp_path, fails_with_a_norm, cases=one_in(2), max_cases=300)
    (refused,) = ran.of(QuarantineRefused)
    assert refused.reason.startswith("its cause is in 5")
    assert not held_back(ran)


def test_a_cause_of_one_feature_holds_nothing_back(tmp_path):
    ran = campaign(tmp_path, lambda case: divergence(), max_cases=100)  # all have a Linear with a bias
    (refused,) = ran.of(QuarantineRefused)
    assert refused.reason == "its cause is 1 features"
    assert not held_back(ran)


def test_a_cause_that_rarely_leads_to_the_finding_holds_nothing_back(tmp_path):
    def one_norm_in_four_fails(case: Case) -> Verdict:
        return fails_with_a_norm(case) if case.seed % 20 == 0 else PASS

    ran = campaign(tmp_path, one_norm_in_four_fails, cases=one_in(5), max_cases=500)
    assert not held_back(ran)
    assert not ran.of(FindingQuarantined)


def saved_finding(corpus) -> str:
    ran = campaign(corpus, fails_with_a_norm, cases=one_in(1), max_cases=1)
    return ran.of(FindingSaved)[0].path


def test_a_fix_of_a_finding_that_the_corpus_has_is_noticed(tmp_path):
    path = saved_finding(tmp_path)
    ran = campaign(tmp_path, lambda case: PASS, cases=one_in(5), max_cases=100)
    (gone,) = ran.of(FindingGone)
    assert (gone.path, gone.observed) == (path, ("PASS",))
    assert ran.log.count("run 0") == 1 + gone.runs
    assert [(known.gone, known.hits) for known in ran.finished.findings] == [(True, 0)]
    assert ran.code == 0


def test_a_finding_whose_entry_is_away_is_not_called_gone(tmp_path):
    folder = Path(saved_finding(tmp_path))

    def cases(seed: int, /, **_: object) -> Iterator[Case]:
        shutil.rmtree(folder)
        return one_in(5)(seed)

    ran = campaign(tmp_path, lambda case: PASS, cases=cases, max_cases=100)
    assert ran.code == 0
    assert not ran.of(FindingGone)


def test_a_finding_that_is_still_there_is_looked_at_ever_more_rarely(tmp_path):
    saved_finding(tmp_path)
    ran = campaign(
        tmp_path,
        lambda case: fails_with_a_norm(case) if case.seed == 0 else PASS,
        cases=numbered(lambda i: make_case(i + 1, norm=True, ranks=3)),
        max_cases=REVISIT_AFTER * 7,
    )
    assert not ran.of(FindingGone)
    assert ran.log.count("run 0") == 3  # after 5 passes, 10 more, 20 more


def test_what_is_gone_is_a_finding_again_when_it_comes_back(tmp_path):
    saved_finding(tmp_path)

    def verdict_of(case: Case) -> Verdict:
        return fails_with_a_norm(case) if case.seed >= 60 else PASS

    ran = campaign(tmp_path, verdict_of, cases=one_in(5), max_cases=62)
    assert len(ran.of(FindingGone)) == 1
    assert len(ran.of(FindingFound)) == 1
    assert ran.code == 0  # it shrinks to its old entry


def test_a_quarantine_ends_when_its_cases_pass_and_its_own_case_does_not(tmp_path):
    def verdict_of(case: Case) -> Verdict:
        return fails_with_a_norm(case) if case.seed < 100 else PASS

    ran = campaign(tmp_path, verdict_of, cases=one_in(5), max_cases=2000)
    (quarantined,) = ran.of(FindingQuarantined)
    (refused,) = ran.of(QuarantineRefused)
    assert refused.path == quarantined.path
    assert "its own case does not" in refused.reason
    last = held_back(ran)[-1]
    norms = (event.index for event in ran.of(CaseJudged) if event.index % 5 == 0)
    assert sum(index > last for index in norms) == (1999 - last) // 5
