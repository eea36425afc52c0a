"""In which dtype a gradient was reduced."""

from __future__ import annotations

import pytest
import torch
from cases import make_case
from msgspec.structs import replace
from traces import difference, floats, gradient, trace

from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.oracles.bound import Bound
from fuzzshard.oracles.reduced_dtype import is_reduced_otherwise
from fuzzshard.training.trace import Key

CASE = make_case(engines=("fsdp1",), fsdp1=FSDP1(precision=Precision(reduce="float16")))
KEY = gradient(1)
ANY = torch.tensor([0.123456789, -1.7654321, 0.0])
HALF = ANY.half().float()


@pytest.mark.parametrize(("observed", "expected"), [(ANY, HALF), (HALF, ANY)])
def test_a_gradient_that_was_not_rounded_as_the_reference_was_is_told_by_its_bits(
    observed: torch.Tensor, expected: torch.Tensor
) -> None:
    changed = difference(KEY, observed, expected)
    assert is_reduced_otherwise(CASE, changed)
    assert Bound(CASE, trace({KEY: expected})).excess(changed)[::2] == (False, 0.0)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (HALF, HALF * 2),  # another sum in the same dtype
        (ANY, ANY * 2),
        (ANY[:1], HALF[:1]),  # one number says too little
        (ANY * 0, HALF),
        (None, HALF),
    ],
)
def test_bits_say_nothing_else(observed: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert not is_reduced_otherwise(CASE, difference(KEY, observed, expected))


def test_only_random_gradients_under_a_policy_of_half_precision_are_looked_at() -> None:
    changed = difference(KEY, ANY, HALF)
    assert not is_reduced_otherwise(make_case(), changed)
    assert not is_reduced_otherwise(replace(CASE, values="dyadic"), changed)
    assert not is_reduced_otherwise(CASE, difference(Key(1, "parameter", "a.weight"), ANY, HALF))
    assert not is_reduced_otherwise(CASE, difference(KEY, floats(0.5, 2.0), floats(0.25, 2.0)))
