"""The precision rung: bounds in half precision, anchored in float64."""

from __future__ import annotations

import torch
from cases import AGAIN, BACKWARD, FORWARD, ROOT, STEP, ZERO, groups, make_case
from fuzzshard.oracles.anchor import ANCHOR_FACTOR, PrecisionBound, unrounded
from msgspec.structs import replace
from traces import difference, floats, gradient, trace

from fuzzshard.case.case import Case
from fuzzshard.case.options import FSDP1, ParameterDtype, Precision
from fuzzshard.oracles.bound import ROUNDING_FACTOR, rounding_floor
from fuzzshard.oracles.judge import GRAY, TERMWISE_GRAY_FACTOR, tensor_findings
from fuzzshard.oracles.rungs import exact_applies, loose_rung
from fuzzshard.training.trace import Key

HALF = torch.finfo(torch.bfloat16).eps
FULL = torch.finfo(torch.float32).eps
FIRST_BACKWARD, FIRST_STEP = 1, 2


def case_under(precision: Precision, **options: object) -> Case:
    wrap = tuple(replace(group, precision=precision) for group in groups("a", ROOT))
    return make_case(wrap=wrap, mesh=4, **options)


CASE = case_under(Precision(param="bfloat16", reduce="bfloat16"))


def test_a_gradient_may_round_in_the_dtype_of_the_reduction() -> None:
    changed = difference(gradient(FIRST_BACKWARD), floats(1.0), floats(2.0))
    floors = {
        reduce: rounding_floor(case_under(Precision(param="bfloat16", reduce=reduce)), changed).item()
        for reduce in ("bfloat16", "float32")
    }
    assert floors == {"bfloat16": ROUNDING_FACTOR * HALF * 2, "float32": ROUNDING_FACTOR * FULL * 2}


def test_what_adds_up_in_another_order_rounds_in_the_dtype_of_the_computation() -> None:
    case = case_under(
        Precision(param="bfloat16", reduce="float32"), schedule=(FORWARD, AGAIN, BACKWARD, STEP, ZERO)
    )
    floor = rounding_floor(case, difference(gradient(2), floats(1.0), floats(2.0)))
    assert floor.item() == ROUNDING_FACTOR * HALF * 2


def precision_bound(key: Key, reference: torch.Tensor, truth: torch.Tensor) -> PrecisionBound:
    return PrecisionBound(CASE, trace({key: reference}), [], truth=trace({key: truth}))


def test_an_engine_may_be_off_as_the_reference_is_from_the_truth() -> None:
    key = Key(FIRST_STEP, "parameter", "a.weight")
    bound = precision_bound(key, floats(1.0), floats(1.25, dtype=torch.float64))
    assert bound.excess(difference(key, floats(1.9), floats(1.0)))[0]
    explained, error, limit = bound.excess(difference(key, floats(2.5), floats(1.0)))
    assert not explained
    assert error == 1.5
    assert limit >= ANCHOR_FACTOR * 0.25


def test_the_truth_does_not_excuse_a_gradient_that_only_the_reduction_rounds() -> None:
    key = gradient(FIRST_BACKWARD)
    bound = precision_bound(key, floats(1.0), floats(3.0, dtype=torch.float64))
    changed = difference(key, floats(2.0), floats(1.0))
    assert not bound.excess(changed)[0]
    (finding,) = tensor_findings("fully_shard", [changed], "precision", bound, lambda d: "fully_shard", 0)
    assert finding.detail == ""
    near = difference(key, floats(1.0 + 2 * ROUNDING_FACTOR * HALF), floats(1.0))
    assert TERMWISE_GRAY_FACTOR > 2
    (finding,) = tensor_findings("fully_shard", [near], "precision", bound, lambda d: "fully_shard", 0)
    assert finding.detail == GRAY


def test_the_truth_has_neither_policies_nor_dtypes() -> None:
    options = FSDP1(precision=Precision(param="float16"))
    other = (ParameterDtype(target="a", dtype="bfloat16"),)
    plain = make_case(wrap=groups("a", ROOT), mesh=4)
    assert unrounded(replace(CASE, fsdp1=options, dtypes=other)) == plain


def test_the_rung_of_half_precision() -> None:
    assert (loose_rung(CASE), loose_rung(make_case())) == ("precision", "bounded")
    assert exact_applies(make_case(mesh=4), "fully_shard")
    assert not exact_applies(CASE, "fully_shard")
    assert exact_applies(replace(CASE, mesh=make_case().mesh), "fully_shard")
