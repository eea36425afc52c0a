"""A wrong factor told from rounding."""

from __future__ import annotations

import pytest
import torch
from cases import make_case
from fuzzshard.oracles.anchor import PrecisionBound
from fuzzshard.oracles.factor import FEWEST_ELEMENTS, NOISE_FACTOR, allowed_deviation
from traces import difference, gradient, trace

from fuzzshard.oracles.bound import NoiseBound
from fuzzshard.oracles.judge import GRAY, tensor_findings

EXPECTED = torch.linspace(-2, 3, 24)
ROUNDED = EXPECTED.bfloat16().float()


@pytest.mark.parametrize("wrong", [0.5, 1 / 3, 0.25, 2.0, 4.0, 0.0, -1.0])
def test_a_factor_that_all_elements_have_is_told_from_rounding(wrong: float) -> None:
    observed = (wrong * EXPECTED).bfloat16().float()
    allowed = allowed_deviation(observed, EXPECTED, [ROUNDED])
    assert allowed is not None
    assert allowed < abs(wrong - 1)


def test_independent_errors_of_any_size_are_no_factor() -> None:
    generator = torch.Generator().manual_seed(7)
    for size in (0.01, 0.3, 1.0, 10.0):
        noise = size * torch.randn(EXPECTED.shape, generator=generator)
        assert allowed_deviation(EXPECTED + noise, EXPECTED, [ROUNDED]) is None


def test_a_factor_that_rounding_gives_another_run_is_no_mistake() -> None:
    deviation = 0.5
    other = (1 + deviation / NOISE_FACTOR) * EXPECTED
    assert allowed_deviation(1.4 * EXPECTED, EXPECTED, [other]) is None
    assert allowed_deviation(1.6 * EXPECTED, EXPECTED, [other]) is not None


def test_nothing_is_a_factor_of_what_rounding_moves_by_more_than_itself() -> None:
    signs = torch.tensor([1.0, -1.0]).repeat(12)
    for size, told in ((1.0, True), (3.0, False)):
        moved = EXPECTED + size * signs
        assert (allowed_deviation(0 * EXPECTED, EXPECTED, [ROUNDED, moved]) is not None) is told


def test_nothing_is_a_factor_of_what_rounding_takes_out_of_range() -> None:
    for beyond in (torch.inf, torch.nan):
        moved = EXPECTED.clone()
        moved[0] = beyond
        assert allowed_deviation(0 * EXPECTED, EXPECTED, [ROUNDED]) is not None
        assert allowed_deviation(0 * EXPECTED, EXPECTED, [ROUNDED, moved]) is None


def test_few_elements_say_nothing() -> None:
    for size, told in ((FEWEST_ELEMENTS - 1, False), (FEWEST_ELEMENTS + 1, True)):
        few = torch.ones(int(size))
        assert (allowed_deviation(few / 2, few, []) is not None) is told
    large = EXPECTED.clone()
    large[5] = 100 * EXPECTED.abs().max()
    assert allowed_deviation(large / 2, large, []) is None
    assert allowed_deviation(torch.zeros(4), torch.zeros(4), []) is None


def test_invalid_elements_say_nothing() -> None:
    invalid = EXPECTED / 2
    invalid[0] = torch.nan
    assert allowed_deviation(invalid, EXPECTED, []) is None


def test_a_halved_gradient_is_a_finding_although_rounding_may_move_it_as_far() -> None:
    key = gradient(4)
    signs = torch.tensor([1.0, -1.0]).repeat(12)
    moved = EXPECTED + signs
    plain = NoiseBound(make_case(mesh=4), trace({key: EXPECTED}), [trace({key: moved})])
    truth = trace({key: ROUNDED.double()})
    bound = PrecisionBound(plain.case, plain.reference, plain.twins, truth=truth)
    halved = difference(key, EXPECTED / 2, EXPECTED)
    for judged in (plain, bound):
        explained, error, limit = judged.excess(halved)
        assert not explained
        assert error > limit
        (finding,) = tensor_findings("ddp", [halved], "precision", judged, lambda d: "ddp", 0)
        assert finding.detail != GRAY
    other = difference(key, EXPECTED - signs, EXPECTED)
    assert bound.excess(other)[0]
