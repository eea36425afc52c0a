"""In which dtype a gradient was reduced."""

from __future__ import annotations

import pytest
import torch
from cases import make_case
from msgspec.structs import replace
from traces import difference, gradient, trace

from fuzzshard.case.case import Case, Mesh
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.oracles.bound import Bound
from fuzzshard.oracles.reduced_dtype import FEWEST_SUMS, is_reduced_otherwise
from fuzzshard.parts.ops import SetFlag
from fuzzshard.training.trace import Key, Trace

REDUCED = make_case(engines=("fsdp1",), fsdp1=FSDP1(precision=Precision(reduce="float16")))
COMPUTED = make_case(engines=("fsdp1",), fsdp1=FSDP1(precision=Precision(param="float16", reduce="float32")))
KEY = gradient(1)
ANY = torch.linspace(0.1, 1.3, FEWEST_SUMS + 1)
HALF = ANY.half().float()


@pytest.mark.parametrize(
    ("case", "observed", "expected"),
    [(REDUCED, ANY, HALF), (REDUCED, ANY[:2], HALF[:2]), (COMPUTED, HALF, ANY)],
)
def test_a_gradient_that_was_not_rounded_as_its_policy_says_is_told_by_its_bits(
    case: Case, observed: torch.Tensor, expected: torch.Tensor
) -> None:
    changed = difference(KEY, observed, expected)
    assert is_reduced_otherwise(case, changed, Trace())
    assert Bound(case, trace({KEY: expected})).excess(changed)[::2] == (False, 0.0)


@pytest.mark.parametrize(
    ("case", "observed", "expected"),
    [
        (REDUCED, HALF, HALF * 2),  # another sum in the same dtype
        (REDUCED, ANY, ANY * 2),  # several reductions
        (REDUCED, ANY[:1], HALF[:1]),  # one number says too little
        (REDUCED, None, HALF),
        (COMPUTED, HALF[:4], ANY[:4]),  # sums of few numbers say too little
        (COMPUTED, ANY, HALF),
        (replace(REDUCED, mesh=Mesh(shard=1)), ANY, HALF),
    ],
)
def test_bits_say_nothing_else(case: Case, observed: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert not is_reduced_otherwise(case, difference(KEY, observed, expected), Trace())


def test_only_the_first_random_gradient_under_a_policy_of_half_precision_is_looked_at() -> None:
    changed, parameter = difference(KEY, ANY, HALF), Key(1, "parameter", "a.weight")
    parts = (SetFlag(flag="requires_all_reduce", value=False), *REDUCED.schedule)
    assert is_reduced_otherwise(REDUCED, changed, trace({gradient(0): None}))
    assert not is_reduced_otherwise(REDUCED, changed, trace({gradient(0): ANY}))
    assert not is_reduced_otherwise(make_case(), changed, Trace())
    assert not is_reduced_otherwise(replace(REDUCED, values="dyadic"), changed, Trace())
    assert not is_reduced_otherwise(replace(REDUCED, schedule=parts), changed, Trace())
    assert not is_reduced_otherwise(REDUCED, difference(parameter, ANY, HALF), Trace())
