"""What the reference computes with where groups round parameters."""

from __future__ import annotations

import pytest
import torch
from cases import ROOT, make_case
from torch import nn

from fuzzshard.case.case import WrapGroup
from fuzzshard.case.facts import facts
from fuzzshard.engines.precision import MasterWeights, ParameterDtypes
from fuzzshard.engines.rounding import Rounding, Shake, rounding_functions

BETWEEN, BELOW = 1.0625, 1.0624
"""Halfway between two numbers of float8_e4m3fn, and below that."""


@pytest.fixture
def rounding() -> Rounding:
    case = make_case(wrap=(WrapGroup(modules=(ROOT,), all_gather_extension="float8"),))
    return rounding_functions(case, facts(case))["a.weight"]


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
