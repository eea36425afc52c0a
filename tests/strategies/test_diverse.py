"""Streams of cases whose features have seldom been together before."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter

import pytest

from fuzzshard.analysis.features import features
from fuzzshard.case.case import Case
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies.diverse import CANDIDATES, diverse, expected_time

COUNT = 100


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    """The first is yielded, and each group of candidates after it is whole."""
    return draw_cases(12, 1 + CANDIDATES * (COUNT - 1), world_size=2)


@pytest.fixture(scope="module")
def newest(drawn: list[Case]) -> list[Case]:
    return [*diverse(iter(drawn))]


def groups(drawn: list[Case]) -> list[list[Case]]:
    """What each case was chosen from."""
    starts = range(1, len(drawn), CANDIDATES)
    return [drawn[:1], *(drawn[start : start + CANDIDATES] for start in starts)]


def pairs(cases: list[Case]) -> set[tuple[str, str]]:
    return {pair for case in cases for pair in itertools.combinations(sorted(features(case)), 2)}


def test_one_of_each_few_cases_comes(drawn: list[Case], newest: list[Case]) -> None:
    assert all(case in group for case, group in zip(newest, groups(drawn), strict=True))


def test_a_stream_does_not_depend_on_how_much_of_it_is_taken(
    drawn: list[Case], newest: list[Case]
) -> None:
    assert [*itertools.islice(diverse(iter(drawn)), 20)] == newest[:20]


def test_what_was_there_already_loses_to_what_is_new() -> None:
    new, old = draw_cases(12, 3, world_size=2)[1:]
    assert features(new) - features(old)
    for group in ([old, new], [new, old]):
        assert [*diverse(iter([old, *group]))] == [old, new]


def test_more_pairs_of_features_come(drawn: list[Case], newest: list[Case]) -> None:
    assert len(pairs(newest)) > 1.2 * len(pairs(drawn[:COUNT]))


def test_cases_take_no_longer_than_those_drawn(drawn: list[Case], newest: list[Case]) -> None:
    mean, of_drawn = (statistics.fmean(map(expected_time, cases)) for cases in (newest, drawn))
    assert mean < of_drawn


def test_a_compiled_case_competes_with_compiled_ones_alone(
    drawn: list[Case], newest: list[Case]
) -> None:
    kept = Counter(case.compile is not None for case in newest)
    assert kept == Counter(group[0].compile is not None for group in groups(drawn))
    assert kept[True]
