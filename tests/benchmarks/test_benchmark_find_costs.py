"""What finding a planted bug costs, from two shares."""

from __future__ import annotations

import math

import pytest
from cases import make_case
from find_costs import Cost, Share, with_features
from msgspec.structs import replace


def test_a_bug_costs_a_case_divided_by_both_shares() -> None:
    cost = Cost("bug", Share(100, 1000), Share(10, 40), seconds=2.0)
    assert cost.to_find == pytest.approx(2.0 / (0.1 * 0.25))
    assert cost.factor == pytest.approx(math.exp(math.sqrt(0.9 / 100 + 0.75 / 10)))


def test_what_was_never_seen_costs_as_much_as_if_one_more_try_in_two_showed_it() -> None:
    assert Share(0, 40).value == 0.5 / 40
    assert Cost("bug", Share(100, 1000), Share(0, 40), seconds=1.0).to_find == pytest.approx(800)


def test_cases_have_a_feature_for_each_glob() -> None:
    has = [
        (replace(make_case(), seed=n), frozenset(names))
        for n, names in enumerate((["mesh:2"], ["mesh:2", "leaf:linear"], []))
    ]
    assert [case.seed for case in with_features(has, ["mesh:*", "leaf:linear|leaf:mlp"])] == [1]
    assert [case.seed for case in with_features(has, ["mesh:*"])] == [0, 1]
