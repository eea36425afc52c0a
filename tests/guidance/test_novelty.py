import itertools

import numpy as np
import pytest

from fuzzshard.case.features import features
from fuzzshard.guidance.novelty import GUIDING, Conjunctions, guiding_features
from fuzzshard.strategies import draw_cases


def present(*indices):
    return np.array(sorted(indices), dtype=np.intp)


def test_a_first_case_brings_all_its_features_pairs_and_triples():
    assert Conjunctions().add(present(0, 1, 2, 3)) == 4 + 6 + 4


def test_only_conjunctions_that_no_case_had_are_new():
    seen = Conjunctions()
    seen.add(present(0, 1, 2))
    assert seen.add(present(0, 1, 2)) == 0
    assert seen.add(present(0, 1, 3)) == 1 + 2 + 1


def test_features_pairs_and_triples_are_counted_as_cases_have_them():
    seen = Conjunctions()
    cases = draw_cases(3, 60, world_size=4)
    for case in cases:
        seen.add(guiding_features(case))
    wanted = ("wrap:several_groups", "schedule:microbatches", "freeze:parameter")
    for size in (1, 2, 3):
        for names in itertools.combinations(wanted, size):
            assert seen.count(names) == sum(features(case).issuperset(names) for case in cases)


def test_what_was_seen_often_is_less_rare():
    seen = Conjunctions()
    for _ in range(20):
        seen.add(present(0, 1, 2))
    assert (
        seen.rarity(present(0, 1, 2))
        < seen.rarity(present(0, 1, 3))
        < seen.rarity(present(3, 4, 5))
    )


def test_a_case_without_features_is_not_rare():
    assert Conjunctions().rarity(present()) == 0


def test_counts_do_not_overflow():
    seen = Conjunctions()
    seen._counts[:] = np.iinfo(np.uint16).max
    seen.add(present(0, 1))
    assert seen.count(GUIDING[:2]) == np.iinfo(np.uint16).max


@pytest.mark.parametrize("dimension", ["leaf:", "dtype:"])
def test_dimensions_that_are_drawn_evenly_guide_nothing(dimension):
    assert not any(name.startswith(dimension) for name in GUIDING)
