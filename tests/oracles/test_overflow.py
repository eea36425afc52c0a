from __future__ import annotations

import pytest
import torch
from cases import make_case
from msgspec.structs import replace
from traces import difference, floats, gradient

from fuzzshard.case.case import Case
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.oracles.overflow import first_overflow
from fuzzshard.training.trace import Key

INF, NAN = float("inf"), float("nan")
CASE = make_case(mesh=2)
NARROW = replace(CASE, engines=("fsdp1",), fsdp1=FSDP1(precision=Precision(param="float16")))
END = len(CASE.schedule)


def first(
    observed: torch.Tensor | None,
    expected: torch.Tensor | None,
    key: Key | None = None,
    case: Case = CASE,
) -> int:
    return first_overflow(case, [difference(key or gradient(3), observed, expected)])


@pytest.mark.parametrize("mean", [2e38, -2e38])
def test_a_mean_that_fits_where_its_sum_does_not_is_an_overflow(mean: float) -> None:
    """Of whichever side divides first."""
    number, infinity = floats(mean, 1.0), floats(INF if mean > 0 else -INF, 1.0)
    assert first(number, infinity) == first(infinity, number) == 3


def test_what_fits_float64_is_no_overflow() -> None:
    observed, expected = floats(2e38, dtype=torch.float64), floats(INF, dtype=torch.float64)
    assert first(observed, expected, case=replace(CASE, dtype="float64")) == END


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (floats(1e38), floats(INF)),
        (floats(2e38, 1.0), floats(INF, INF)),
        (floats(2e38), floats(1e38)),
        (None, floats(INF)),
        (floats(2e38), None),
    ],
)
def test_an_infinity_that_no_sum_explains_is_none(
    observed: torch.Tensor | None, expected: torch.Tensor | None
) -> None:
    assert first(observed, expected) == END


def test_only_gradients_are_summed_over_ranks() -> None:
    assert first(floats(2e38), floats(INF), Key(3, "parameter", "a.weight")) == END


def test_the_first_of_several_counts() -> None:
    found = [difference(gradient(op), floats(2e38), floats(INF)) for op in (5, 4)]
    assert first_overflow(CASE, found) == 4


@pytest.mark.parametrize(
    ("case", "expected", "end"),
    [
        (NARROW, floats(-4e4, 2.0), 3),
        (NARROW, floats(-3e4, 2.0), END),
        (NARROW, floats(-INF, 2.0), END),
        (CASE, floats(-4e4, 2.0), END),
    ],
)
def test_a_mean_whose_part_may_be_too_large_for_a_narrower_dtype_is_an_overflow(
    case: Case, expected: torch.Tensor, end: int
) -> None:
    assert first(floats(-INF, 1.0), expected, case=case) == end


@pytest.mark.parametrize(
    ("observed", "expected", "end"),
    [
        (floats(NAN, 1.0), floats(INF, 2.0), 3),
        (floats(-INF), floats(NAN), 3),
        (floats(-INF), floats(INF), 3),
        (floats(NAN, 1.0), floats(NAN, 2.0), END),  # nothing that overflowed differs
        (floats(INF, 1.0), floats(INF, 2.0), END),
        (floats(NAN, NAN), floats(INF, 1.0), END),  # a number that the engine alone has lost
        (floats(1.0), floats(2.0), END),
        (None, floats(INF), END),
    ],
)
def test_parts_of_a_sum_that_overflow_in_one_order_only_end_the_comparison(
    observed: torch.Tensor | None, expected: torch.Tensor, end: int
) -> None:
    assert first(observed, expected) == end


def test_only_gradients_are_added_up_in_parts() -> None:
    assert first(floats(NAN), floats(INF), Key(3, "output", "a")) == END
