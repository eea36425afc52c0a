from __future__ import annotations

import pytest
import torch
from cases import make_case
from traces import difference, floats, gradient

from fuzzshard.oracles.overflow import first_overflow
from fuzzshard.training.trace import Key

INF, NAN = float("inf"), float("nan")
CASE = make_case(mesh=2)
END = len(CASE.schedule)


def first(
    observed: torch.Tensor | None,
    expected: torch.Tensor | None,
    key: Key | None = None,
) -> int:
    return first_overflow(CASE, [difference(key or gradient(3), observed, expected)])


@pytest.mark.parametrize(
    ("observed", "expected", "end"),
    [
        (floats(2e38, 1.0), floats(INF, 1.0), 3),
        (floats(-INF, 1.0), floats(-3e4, 2.0), 3),
        (floats(NAN, 1.0), floats(INF, 2.0), 3),
        (floats(-INF), floats(NAN), 3),
        (floats(-INF), floats(INF), 3),
        (floats(NAN, NAN), floats(INF, 1.0), 3),
        (floats(NAN, 1.0), floats(NAN, 2.0), END),  # nothing that overflowed differs
        (floats(INF, 1.0), floats(INF, 2.0), END),
        (floats(1.0), floats(2.0), END),
        (None, floats(INF), END),
        (floats(INF), None, END),
    ],
)
def test_a_gradient_overflows_where_it_differs_and_is_no_finite_number(
    observed: torch.Tensor | None, expected: torch.Tensor | None, end: int
) -> None:
    assert first(observed, expected) == end


def test_a_loss_overflows_as_a_gradient_does() -> None:
    assert first(floats(2e38), floats(INF), Key(3, "loss", "loss")) == 3


def test_the_first_of_several_counts() -> None:
    found = [difference(gradient(op), floats(2e38), floats(INF)) for op in (5, 4)]
    assert first_overflow(CASE, found) == 4


@pytest.mark.parametrize(
    ("observed", "expected", "end"),
    [
        (floats(3.7e37, 1.0), floats(INF, 1.0), 3),
        (floats(-INF), floats(-1e38), 3),
        (floats(3e4), floats(INF), END),
        (floats(NAN), floats(1e38), END),
        (floats(-INF), floats(NAN), 3),  # clipping by value makes a number of one of them
        (torch.tensor([1]), torch.tensor([2]), END),
    ],
)
def test_a_finer_run_overflows_where_the_other_side_is_huge(
    observed: torch.Tensor, expected: torch.Tensor, end: int
) -> None:
    found = [difference(gradient(3), observed, expected)]
    assert first_overflow(CASE, found, to_huge=True) == end
