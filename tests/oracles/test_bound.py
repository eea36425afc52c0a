"""What rounding explains of a difference."""

from __future__ import annotations

import pytest
import torch
from cases import make_case
from msgspec.structs import replace
from traces import difference, floats, gradient, trace

from fuzzshard.case.case import Case
from fuzzshard.case.options import FSDP1, ParameterDtype, Precision
from fuzzshard.oracles.bound import (
    MARGIN,
    TOLERANCES,
    Bound,
    distance,
    largest_distance,
    tolerance,
)
from fuzzshard.oracles.rungs import loose_rung
from fuzzshard.parts.ops import Cast
from fuzzshard.training.trace import Key

NAN, INF = float("nan"), float("inf")
KEY, OTHER = gradient(1), gradient(1, "b.weight")
CASE = make_case(dtype="float64")
DOUBLE = TOLERANCES[torch.float64]


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
        (INF, -INF, INF),
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
def test_the_coarsest_dtype_sets_the_tolerance(case: Case, coarsest: torch.dtype) -> None:
    assert tolerance(case) == TOLERANCES[coarsest]


def excess(
    observed: torch.Tensor | None, expected: torch.Tensor, beside: torch.Tensor | None = None
) -> tuple:
    reference = trace({KEY: expected, OTHER: beside})
    return Bound(CASE, reference).excess(difference(KEY, observed, expected))


def test_outputs_may_cancel_in_their_loss() -> None:
    loss = Key(1, "loss", "loss")
    seen = {loss: doubles(0.0), Key(1, "output", "output 0"): doubles(1e12, -1e12)}
    assert Bound(CASE, trace(seen)).limit(loss, torch.float64) == 1e12 * DOUBLE
    seen = {loss: doubles(1e12), Key(1, "output", "output 0"): doubles(1.0)}
    bound = Bound(CASE, trace(seen))
    assert bound.limit(loss, torch.float64) == 1e12 * DOUBLE
    assert bound.limit(Key(1, "output", "output 0"), torch.float64) == DOUBLE


def test_the_scale_is_the_largest_element_and_one_at_least() -> None:
    explained, error, limit = excess(doubles(3.0, 100.0), doubles(3.0, 200.0))
    assert (explained, error, limit) == (False, 100.0, 200 * DOUBLE)
    assert excess(doubles(0.0), doubles(DOUBLE / 2))[0]
    assert not excess(doubles(0.0), doubles(DOUBLE * 2))[0]


def test_what_cancels_has_the_scale_of_what_the_op_leaves_beside_it() -> None:
    assert not excess(doubles(0.0), doubles(DOUBLE * 50))[0]
    assert excess(doubles(0.0), doubles(DOUBLE * 50), beside=doubles(100.0))[0]


def test_an_engine_may_be_off_by_a_part_of_what_another_precision_changes() -> None:
    reference, other = trace({KEY: doubles(1.0)}), trace({KEY: floats(5.0)})
    changed = difference(KEY, doubles(3.0), doubles(1.0))
    assert Bound(CASE, reference, other, 0.5).excess(changed)[0]
    assert not Bound(CASE, reference, other, 0.25).excess(changed)[0]
    assert Bound(CASE, reference, trace({KEY: floats(INF)}), DOUBLE).excess(changed)[0]
    assert not Bound(CASE, reference, trace({KEY: None}), 16.0).excess(changed)[0]


def test_what_another_precision_changes_beyond_the_tolerance_has_lost_its_digits() -> None:
    reference, changed = trace({KEY: doubles(1.0)}), difference(KEY, doubles(3.0), doubles(1.0))
    assert Bound(CASE, reference, trace({KEY: doubles(1.0 + DOUBLE)})).excess(changed)[0]
    assert not Bound(CASE, reference, trace({KEY: doubles(1.0 + DOUBLE / MARGIN / 2)})).excess(
        changed
    )[0]


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


def test_the_rung_of_half_precision() -> None:
    assert loose_rung(under(Precision(param="bfloat16"))) == "precision"
    assert loose_rung(make_case()) == "bounded"
