from __future__ import annotations

import itertools

import pytest
from fake_campaign import make_case

from fuzzshard.campaign.drawing import Prefetch


def test_cases_come_in_order_up_to_the_limit_and_few_are_drawn_ahead():
    drawn = []

    def stream():
        for seed in itertools.count():
            drawn.append(seed)
            yield make_case(seed)

    cases = Prefetch(stream(), ahead=3, limit=10)
    taken = []
    while (one := cases.take()) is not None:
        taken.append(one)
        assert len(drawn) <= len(taken) + 3
    assert [(index, case.seed) for index, case in taken] == [(n, n) for n in range(10)]
    assert drawn == [*range(10)]


def test_what_drawing_raises_is_raised_by_who_takes_the_next_case():
    def stream():
        yield make_case(0)
        raise ValueError("no more")

    cases = Prefetch(stream(), ahead=2)
    assert cases.take() is not None
    with pytest.raises(ValueError, match="no more"):
        cases.take()
