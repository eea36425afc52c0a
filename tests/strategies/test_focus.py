"""Cases around one in focus."""

from __future__ import annotations

import functools
import itertools

import pytest
from cases import chain, make_case

from fuzzshard.analysis.features import features
from fuzzshard.analysis.steering import Steering
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies.steered import Steered, reach, steered_stream

SEED, WORLD = 5, 4


@functools.cache
def in_focus() -> Case:
    """A case with features that seldom come together."""
    rare = {"mesh:hsdp", "checkpoint:composable"}
    return next(c for c in draw_cases(3, 400, world_size=WORLD) if rare <= features(c))


def near(case: Case, count: int, **asked: tuple[str, ...]) -> tuple[Steered, list[Case]]:
    steering = Steering(focus=case, focus_name="it", **asked)
    steered = reach(steering, SEED, world_size=WORLD, cuda=False)
    cases = steered_stream(SEED, world_size=WORLD, steered=steered)
    return steered, list(itertools.islice(cases, count))


@pytest.mark.slow
def test_the_case_comes_first_and_the_others_share_its_rarest_features() -> None:
    case = in_focus()
    steered, cases = near(case, 30)
    assert cases[0] == case
    assert len(set(cases)) == 30
    assert len(steered.shared) >= 2
    assert all(features(c).issuperset(steered.shared) for c in cases)


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
        reach(steering, SEED, world_size=2, cuda=False)
