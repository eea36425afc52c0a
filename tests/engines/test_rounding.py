"""What the reference computes with where groups round parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import ROOT, make_case
from torch import nn

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import WrapGroup
from fuzzshard.engines.precision import MasterWeights, ParameterDtypes
from fuzzshard.engines.rounding import MonteCarloArithmetic, Rounding, Shake, rounding_functions

BETWEEN, BELOW = 1.0625, 1.0624
"""Halfway between two numbers of float8_e4m3fn, and below that."""


@pytest.fixture
def rounding() -> Rounding:
    case = make_case(wrap=(WrapGroup(modules=(ROOT,), all_gather_extension="float8"),))
    return rounding_functions(case, inferred(case))["a.weight"]


def rounding_weights(model: nn.Module, rounding: Rounding) -> MasterWeights:
    return MasterWeights(model, ParameterDtypes({}, {}, False, frozenset(), {"weight": rounding}))


def filled(value: float) -> nn.Linear:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_float8_rounds_to_even_and_saturates_in_every_dtype(
    rounding: Rounding, dtype: torch.dtype
) -> None:
    values = torch.tensor([1.0, 1.03, BETWEEN, 1.09, -2.2, 1000.0], dtype=dtype)
    expected = torch.tensor([1.0, 1.0, 1.0, 1.125, -2.25, 28.0], dtype=dtype)
    torch.testing.assert_close(rounding(values), expected, rtol=0, atol=0)
    torch.testing.assert_close(rounding(expected), expected, rtol=0, atol=0)


def test_modules_compute_with_rounded_values_and_the_parameter_stays(rounding: Rounding) -> None:
    model = filled(BELOW)
    weights = rounding_weights(model, rounding)
    with weights.computing():
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.tolist() == [[1.0, 1.0]]
    assert model.weight[0, 0].item() == pytest.approx(BELOW)
    assert weights.leaves["weight"].grad.tolist() == [[1.0, 1.0]]


def test_what_is_rounded_has_the_dtype_that_the_model_is_cast_to(rounding: Rounding) -> None:
    model = filled(BELOW)
    weights = rounding_weights(model, rounding)
    for dtype in (torch.float32, torch.float64):
        with weights.computing():
            assert model.weight.dtype is dtype
        model.double()


def test_shaken_values_differ_in_their_last_bits_once_they_are_rounded(rounding: Rounding) -> None:
    model = filled(BELOW)
    weights = rounding_weights(model, rounding)
    weights.shaken = Shake(0.25)
    with weights.computing():
        assert {*model.weight.flatten().tolist()} <= {0.75, 1.25}


BIT = torch.finfo(torch.float64).eps


def rounded(compute: Callable[[], torch.Tensor], seed: int = 0) -> torch.Tensor:
    with MonteCarloArithmetic(Shake(BIT, seed)):
        return compute()


def test_what_an_operator_computes_differs_by_last_bits() -> None:
    x, w = (torch.rand(8, 8, dtype=torch.float64) for _ in range(2))
    exact, moved = x @ w, rounded(lambda: x @ w)
    assert {*((moved - exact) / exact / BIT).round().flatten().tolist()} == {-1.0, 1.0}
    assert torch.equal(moved, rounded(lambda: x @ w))
    assert not torch.equal(moved, rounded(lambda: x @ w, seed=1))


def test_a_difference_that_cancels_has_the_digits_that_its_terms_leave() -> None:
    x = torch.tensor([50.0, 1.0], dtype=torch.float64)
    left = [rounded(lambda: x - x.logsumexp(0), seed)[0] for seed in range(8)]
    assert max(left) - min(left) >= 50 * BIT


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.view(4, 2),
        lambda x: x.relu() * 3,
        lambda x: x.amax(0),
        lambda x: x.sort().values,
        lambda x: torch.cat([x, x]),
        lambda x: (x * 0).sum(),
    ],
)
def test_zeros_and_what_is_no_sum_stay_equal(compute) -> None:
    x = torch.rand(8)
    assert torch.equal(rounded(lambda: compute(x)), compute(x))


def test_gradients_differ_too_and_infinities_stay() -> None:
    weight = torch.full((4, 4), 3.0, requires_grad=True)
    with MonteCarloArithmetic(Shake(BIT)):
        (weight @ weight).sum().backward()
        total = torch.full((64, 2), float("inf")).sum(1)
    assert weight.grad is not None
    assert not torch.equal(weight.grad, torch.full((4, 4), 24.0))
    assert total.isinf().all()


def test_a_backward_finds_the_maximum_that_its_forward_has_chosen() -> None:
    x = torch.rand(8, requires_grad=True)
    with MonteCarloArithmetic(Shake(BIT)):
        x.amax(0).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_attention_is_as_exact_as_its_largest_value_is() -> None:
    query, key = torch.ones(1, 2, 1), torch.tensor([[[128.0], [0.0]]])
    value = torch.tensor([[[0.0], [64.0]]])  # the second one does not count
    output = rounded(lambda: nn.functional.scaled_dot_product_attention(query, key, value))
    assert {*output.abs().flatten().tolist()} == {64 * torch.finfo(torch.float32).eps}


def test_gradients_are_infinite_where_scores_of_attention_have_no_digits() -> None:
    given = [torch.full((1, 1, 4, 4), 1e13).double().requires_grad_() for _ in range(3)]
    with MonteCarloArithmetic(Shake(BIT)):
        output = nn.functional.scaled_dot_product_attention(*given)
        output.sum().backward()
    assert output.isfinite().all()
    assert not all(x.grad.isfinite().all() for x in given)
