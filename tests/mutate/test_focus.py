"""Cases around one in focus."""

from __future__ import annotations

import functools
import itertools

import pytest
from cases import chain, make_case

from fuzzshard.case.case import Case
from fuzzshard.case.features import features
from fuzzshard.case.steering import Steering
from fuzzshard.errors import UsageError
from fuzzshard.mutate.focus import around, reach_near
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies.steered import Steered, steered_stream

SEED, WORLD = 5, 4


@functools.cache
def in_focus() -> Case:
    """A case with features that seldom come together."""
    rare = {"mesh:hsdp", "checkpoint:composable"}
    return next(c for c in draw_cases(3, 400, world_size=WORLD) if rare <= features(c))


def near(case: Case, count: int, **asked: tuple[str, ...]) -> tuple[Steered, list[Case]]:
    steering = Steering(focus=case, focus_name="it", **asked)
    steered = reach_near(steering, SEED, world_size=WORLD, cuda=False)
    drawn = steered_stream(SEED, world_size=WORLD, steered=steered)
    cases = around(case, drawn, SEED, steering=steering, world_size=WORLD, cuda=False)
    return steered, list(itertools.islice(cases, count))


@pytest.mark.slow
def test_half_of_the_cases_are_mutants_and_the_others_share_the_rarest_features() -> None:
    case = in_focus()
    steered, cases = near(case, 60)
    assert cases[0] == case
    assert len(set(cases)) == 60
    assert len(steered.shared) >= 2
    assert set(steered.shared) <= features(case)
    stream = steered_stream(SEED, world_size=WORLD, steered=steered)
    drawn = [c for c in itertools.islice(stream, 60) if c in set(cases)]
    assert 20 <= len(drawn) <= 40
    assert all(features(c).issuperset(steered.shared) for c in drawn)
    mutants = [c for c in cases if c not in set(drawn)]
    assert sum(c.model == case.model or c.schedule == case.schedule for c in mutants) >= 10


@pytest.mark.slow
def test_what_is_asked_holds_for_cases_around_the_one_in_focus() -> None:
    case = in_focus()
    _, cases = near(case, 40, exclude=("mesh:hsdp",))
    assert case not in cases
    assert all("mesh:hsdp" not in features(c) for c in cases)


def test_a_case_in_focus_that_does_not_fit_the_world_is_one_line() -> None:
    case = make_case(chain(a=Linear(out=4)), mesh=4)
    steering = Steering(focus=case, focus_name="corpus/it")
    with pytest.raises(
        UsageError, match="corpus/it needs 4 ranks, and a world has 2; use --world-s"
    ):
        reach_near(steering, SEED, world_size=2, cuda=False)
