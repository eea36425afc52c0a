from __future__ import annotations

import pytest
import torch
from cases import TWO_STEPS, make_case
from traces import floats, gradient, trace

from fuzzshard.case.case import Mesh
from fuzzshard.oracles.rungs import bitwise_applies, exact_until
from fuzzshard.parts.ops import SetDivideFactor

KEY = gradient(1)


@pytest.mark.parametrize(("mesh", "expected"), [(1, True), (2, True), (3, False), (4, False)])
def test_bitwise_equality_is_due_where_a_sum_has_two_terms_at_most(mesh: int, expected: bool) -> None:
    assert bitwise_applies(make_case(mesh=mesh), "fully_shard") is expected


@pytest.mark.parametrize(
    ("mesh", "factor", "device", "expected"),
    [
        (Mesh(shard=2), 3.0, "cpu", True),
        (Mesh(shard=2), 3.0, "cuda", False),
        (Mesh(shard=1), 3.0, "cpu", True),
        (Mesh(replicate=2, shard=1), 3.0, "cpu", False),
        (Mesh(replicate=2, shard=1), 4.0, "cpu", True),
    ],
)
def test_a_divide_factor_rounds_where_terms_are_divided_before_they_are_added(
    mesh: Mesh, factor: float, device: str, expected: bool
) -> None:
    case = make_case(mesh=mesh, schedule=(SetDivideFactor(factor=factor), *TWO_STEPS))
    assert bitwise_applies(case, "fully_shard", device) is expected


def test_values_without_rounding_are_exact() -> None:
    single = trace({KEY: floats(0.5, 3.0), gradient(1, "b"): None, gradient(2): torch.tensor([7])})
    double = trace(
        {
            KEY: floats(0.5, 3.0, dtype=torch.float64),
            gradient(1, "b"): None,
            gradient(2): torch.tensor([7]),
        }
    )
    assert exact_until(single, double, 3) == 3


@pytest.mark.parametrize(
    "other", [floats(0.1, dtype=torch.float64), None, floats(float("nan"), dtype=torch.float64)]
)
def test_a_rounded_missing_or_invalid_value_is_not_exact(other: torch.Tensor | None) -> None:
    exact, later = gradient(0), gradient(2)
    rounded = trace({later: floats(0.5), exact: floats(0.5), KEY: floats(0.1)})
    rerun = trace({later: floats(0.5), exact: floats(0.5, dtype=torch.float64), KEY: other})
    assert exact_until(rounded, rerun, 3) == KEY.op
