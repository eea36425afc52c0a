"""What rounding explains of a difference."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from cases import make_case
from msgspec.structs import replace
from traces import difference, floats, gradient, trace

from fuzzshard.analysis.dtypes import loose_comparison
from fuzzshard.case.case import Case
from fuzzshard.case.options import FSDP1, ParameterDtype, Precision
from fuzzshard.oracles.bound import (
    LAST_BITS,
    OF_NOISE,
    OF_NOISE_IN_HALF,
    Bound,
    half_of_the_digits,
    last_bit,
)
from fuzzshard.oracles.compare import distance, largest_distance
from fuzzshard.parts.ops import Cast
from fuzzshard.training.trace import Key

NAN, INF = float("nan"), float("inf")
Tensors = Mapping[Key, torch.Tensor | None]
KEY, OTHER = gradient(1), gradient(1, "b.weight")
CASE = make_case(dtype="float64")
EPS = torch.finfo(torch.float64).eps


def doubles(*values: float) -> torch.Tensor:
    return floats(*values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1.0, 1.5, 0.5),
        (INF, INF, 0.0),
        (NAN, NAN, 0.0),
        (NAN, 1.0, INF),
        (INF, 1.0, INF),
        (INF, -INF, 0.0),
        (INF, NAN, 0.0),
        (0.0, -0.0, 0.0),
    ],
)
def test_the_distance_of_two_numbers(a: float, b: float, expected: float) -> None:
    assert distance(floats(a), floats(b)).item() == expected
    assert distance(floats(b), floats(a)).item() == expected
    assert largest_distance(floats(a, 0.0), floats(b, 0.0)) == expected


def under(policy: Precision, dtype: str = "float32") -> Case:
    return make_case(dtype=dtype, engines=("fsdp1",), fsdp1=FSDP1(precision=policy))


@pytest.mark.parametrize(
    ("case", "coarsest"),
    [
        (CASE, torch.float64),
        (make_case(), torch.float32),
        (replace(CASE, schedule=(Cast(dtype="float32"), *CASE.schedule)), torch.float32),
        (under(Precision(param="float16")), torch.float16),
        (under(Precision(param="float16", reduce="bfloat16")), torch.bfloat16),
        (under(Precision(param="float32"), "float64"), torch.float32),
        (make_case(dtypes=(ParameterDtype(target="a", dtype="bfloat16"),)), torch.bfloat16),
    ],
)
def test_the_coarsest_dtype_says_what_a_last_bit_is(case: Case, coarsest: torch.dtype) -> None:
    assert last_bit(case) == torch.finfo(coarsest).eps
    assert half_of_the_digits(case) * last_bit(case) == pytest.approx(last_bit(case) ** 0.5)


def limit(key: Key, seen: Tensors, *moved: Tensors, case: Case = CASE) -> float:
    bound = Bound(case, trace(seen))
    for each in moved:
        bound.move(seen, each)
    return bound.limit(key, seen[key].dtype)


def test_a_few_last_bits_of_the_largest_value_are_rounding() -> None:
    assert limit(KEY, {KEY: doubles(3.0, -200.0)}) == LAST_BITS * EPS * 200.0


def test_float32_has_its_own_last_bits_in_a_run_in_float64() -> None:
    eps = torch.finfo(torch.float32).eps
    assert limit(KEY, {KEY: floats(0.5)}) == LAST_BITS * eps * 0.5


def test_what_cancels_has_the_scale_of_what_the_op_leaves_beside_it() -> None:
    seen = {KEY: doubles(1e-20), OTHER: doubles(100.0)}
    assert limit(KEY, seen) == LAST_BITS * EPS * 100.0


def test_what_has_no_digits_below_a_number_has_the_last_bit_of_that() -> None:
    half = torch.finfo(torch.float16)
    assert limit(KEY, {KEY: floats(0.0, dtype=torch.float16)}) == pytest.approx(
        LAST_BITS * half.eps * half.tiny
    )


@pytest.mark.parametrize(
    ("case", "factor"),
    [(CASE, OF_NOISE), (make_case(), OF_NOISE), (under(Precision(param="bfloat16")), 4.0)],
)
def test_an_engine_may_be_off_by_a_multiple_of_what_last_bits_move(
    case: Case, factor: float
) -> None:
    assert OF_NOISE_IN_HALF == 4.0
    seen = {KEY: doubles(1.0), OTHER: doubles(1.0)}
    farther = {KEY: doubles(1.5), OTHER: doubles(3.0)}
    still = limit(KEY, seen, case=case)
    assert limit(KEY, seen, {KEY: doubles(1.5)}, case=case) == still + factor * 0.5
    assert limit(KEY, seen, {KEY: doubles(1.25)}, farther, case=case) == still + factor * 2.0


def test_what_a_shaken_run_does_not_have_moves_nothing() -> None:
    seen = {KEY: doubles(1.0)}
    assert limit(KEY, seen, {KEY: None}, {}) == limit(KEY, seen)
    assert limit(KEY, seen, {KEY: doubles(1.0, 7.0)}) == INF


def test_values_that_last_bits_move_as_far_as_they_are_large_have_no_digits() -> None:
    bound = Bound(CASE, trace({KEY: doubles(1.0)}))
    assert bound.has_digits(KEY)
    bound.move({KEY: doubles(1.0)}, {KEY: doubles(1.0 + 1 / OF_NOISE)})
    assert not bound.has_digits(KEY)


def excess(observed: torch.Tensor | None, expected: torch.Tensor) -> tuple[bool, float, float]:
    return Bound(CASE, trace({KEY: expected})).excess(difference(KEY, observed, expected))


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize(("moved", "explained"), [(1.5, False), (NAN, True), (INF, True)])
def test_rounding_makes_no_number_only_where_last_bits_do(
    value: float, moved: float, *, explained: bool
) -> None:
    bound = Bound(CASE, trace({KEY: doubles(1.0)}))
    bound.move({KEY: doubles(1.0)}, {KEY: doubles(moved)})
    assert bound.excess(difference(KEY, doubles(value), doubles(1.0)))[0] is explained


@pytest.mark.parametrize("value", [NAN, INF])
def test_no_rounding_makes_a_number_of_none(value: float) -> None:
    assert not excess(doubles(value), doubles(1.0))[0]
    assert not excess(doubles(1.0), doubles(value))[0]


def test_an_integer_never_rounds() -> None:
    assert excess(torch.tensor([1_000_001]), torch.tensor([1_000_000])) == (False, 1.0, 0.0)


def test_rounding_explains_no_missing_tensor_and_no_other_shape_or_dtype() -> None:
    for observed in (None, doubles(1.0, 1.0), floats(1.0)):
        assert excess(observed, doubles(1.0)) == (False, INF, 0.0)


def test_a_shard_without_elements_differs_by_nothing() -> None:
    assert excess(doubles(), doubles())[:2] == (True, 0.0)


def test_the_comparison_of_half_precision() -> None:
    assert loose_comparison(under(Precision(param="bfloat16"))) == "precision"
    assert loose_comparison(make_case()) == "bounded"
