import pytest
from throughput import Rate, turns


def test_turns_share_all_cases_among_them():
    assert turns(100, 25) == [25, 25, 25, 25]
    assert turns(60, 25) == [25, 25, 10]


def test_a_turn_of_one_case_is_left_out_because_its_only_case_is_not_timed():
    assert turns(51, 25) == [25, 25]


def test_a_rate_is_the_ratio_of_the_totals_and_not_the_mean_of_the_ratios():
    rate = Rate()
    rate.add(10, 1.0)
    rate.add(10, 3.0)
    assert rate.per_second == pytest.approx(5.0)
