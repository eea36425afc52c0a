from __future__ import annotations

import pytest
import torch
from traces import floats, gradient, trace

from fuzzshard.oracles.first_rounding import exact_until

KEY = gradient(1)


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


def test_a_sum_of_some_terms_might_round_where_the_whole_has_no_bits_to_spare() -> None:
    whole = floats(2.0**22 + 1)
    assert exact_until(trace({KEY: whole}), trace({KEY: whole.double()}), 3) == KEY.op


def test_a_sum_of_terms_in_half_precision_might_round_though_it_is_put_out_in_single() -> None:
    whole, last_bit = floats(19.375), 2.0**-7  # of bfloat16
    runs = trace({KEY: whole}), trace({KEY: whole.double()})
    assert exact_until(*runs, 3, last_bit) == KEY.op
    assert exact_until(*runs, 3) == 3
