from __future__ import annotations

import pytest
from fake_campaign import PASS, campaign, divergence, make_case

from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.case.case import Case
from fuzzshard.guidance import Feedback
from fuzzshard.strategies.steered import steered_stream

pytestmark = pytest.mark.slow


class Counting:
    """A stream whose cases have as seed how much the stream was told before it drew them."""

    def __init__(self) -> None:
        self.told: list[Feedback] = []

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> Case:
        return make_case(len(self.told))

    def learn(self, feedback: Feedback) -> None:
        self.told.append(feedback)


def test_what_a_case_is_drawn_knowing_depends_on_no_timing():
    cases = Prefetch(Counting(), ahead=3, limit=10)
    known = []
    while (taken := cases.take()) is not None:
        known.append(taken[1].seed)
        cases.tell(Feedback(taken[1], True))
    assert known == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]


def test_a_guided_campaign_with_one_world_draws_the_same_cases_for_a_seed(tmp_path):
    logs = [
        campaign(
            tmp_path / name,
            lambda case: divergence() if len(case.wrap) > 3 else PASS,
            cases=steered_stream,
            guidance="features",
            max_cases=25,
            seed=3,
            shrink=False,
            world_size=4,
        ).log
        for name in ("a", "b")
    ]
    assert logs[0] == logs[1]
    assert sum(line.startswith("run") for line in logs[0]) >= 25


def test_guidance_chooses_other_cases_than_the_plain_stream(tmp_path):
    def runs(guidance):
        ran = campaign(
            tmp_path / guidance,
            lambda case: PASS,
            cases=steered_stream,
            guidance=guidance,
            max_cases=12,
            seed=3,
            world_size=4,
        )
        assert ran.code == 0
        return ran.log

    assert runs("none") != runs("features")
