"""What the reference computes with where groups round parameters."""

from __future__ import annotations

import math

import pytest
import torch
from cases import ROOT, make_case
from torch import nn

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import WrapGroup
from fuzzshard.engines.precision import MasterWeights, ParameterDtypes
from fuzzshard.engines.rounding import Ring, Rounding, Shake, rounding_functions

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


class Attention(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value)


def test_attention_that_rounds_as_a_ring_is_as_exact_as_the_largest_value_is() -> None:
    query, key = torch.ones(1, 2, 1), torch.tensor([[[128.0], [0.0]]])
    value = torch.tensor([[[0.0], [64.0]]])  # the second one does not count
    exact, ring = Attention(), Attention()
    Ring.around(ring, Shake(2**-10))
    for attention, moved in ((exact, 0.0), (ring, 2**-10)):
        given = [x.clone().requires_grad_() for x in (query, key, value)]
        output = attention(*given)
        output.backward(torch.full_like(output, 2.0))
        of_query, of_key, of_value = (x.grad for x in given)
        assert {*output.abs().flatten().tolist()} == {moved * 64}
        anew = moved * 2 * math.exp(moved * 128)
        for gradient, off in (
            (of_query, 64 * 128 * anew),
            (of_key, 64 * anew),
            (of_value - torch.tensor([[4.0], [0.0]]), anew),
        ):
            torch.testing.assert_close(gradient.abs(), torch.full_like(gradient, off))


@pytest.mark.parametrize("size", [2**-10, -(2**-10)])
def test_gradients_are_infinite_where_scores_have_no_digits_in_a_ring(size: float) -> None:
    ring = Attention()
    Ring.around(ring, Shake(size))
    given = [torch.full((1, 2, 4), 1e3).requires_grad_() for _ in range(3)]
    output = ring(*given)
    output.sum().backward()
    assert output.isfinite().all()
    assert all(x.grad.isinf().all() for x in given)
