"""Which runs a difference is worth, and what they make of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from cases import chain, make_case
from msgspec.structs import replace
from traces import difference, gradient, trace

from fuzzshard.analysis.dtypes import lifted, uniform
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.rounding import Shake
from fuzzshard.oracles.compare import Difference
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm
from fuzzshard.training.trace import Key, Trace
from fuzzshard.verdict import Finding
from fuzzshard.world.comparison import SHAKES, ReferenceComparison, finer

BEFORE, STEP, AFTER = 1, 2, 5
INF = float("inf")
ONE = torch.ones(3)
HALF = make_case(fsdp1=FSDP1(precision=Precision(param="bfloat16")), engines=("fsdp1",))


class FakeComparison(ReferenceComparison):
    """On one rank, where all values are one, and the engine is off by ``errors`` at ``key`` in
    each dtype.
    """

    def __init__(self, case: Case, key: Key, errors: dict[str, float]) -> None:
        mesh = cast(
            RankMesh, SimpleNamespace(device=torch.device("cpu"), rank=0, size=4, global_rank=0)
        )
        self.key, self.errors, self.trained = key, errors, list[str]()
        self.moved, self.shaken = dict.fromkeys(range(len(SHAKES)), 0.0), 0
        self.truth = 0.0
        self.engine = "fsdp1"
        super().__init__(case, mesh, {"reference": self._ones(case)}, self.off)

    def _ones(self, case: Case) -> Trace:
        return trace({self.key: ONE.to(getattr(torch, case.dtype))})

    def _trace(self, case: Case) -> Trace:
        ones = self._ones(case)
        if case == uniform(self.case, "float64"):
            ones = trace({self.key: ones.tensors[self.key].tensor + self.truth})
        return ones

    def _shaken(self, case: Case, by: Shake) -> Trace:
        moved = self.moved[self.shaken % len(SHAKES)]
        self.shaken += 1
        return trace({self.key: self._ones(case).tensors[self.key].tensor + moved})

    def off(self, case: Case, engine: str) -> Trace:
        self.trained.append(case.dtype)
        error = self.errors[case.dtype]
        return trace({self.key: self._ones(case).tensors[self.key].tensor + error})

    def anywhere(self, here: bool) -> bool:
        return here

    def findings(self) -> list[Finding]:
        expected = self._ones(self.case).tensors[self.key].tensor
        found = [difference(self.key, expected + self.errors[self.case.dtype], expected)]
        self.traces = {**self.traces, self.engine: trace({self.key: found[0].observed})}
        differing = {self.engine: found}
        return self._loose_findings(differing, self._first_overflows(differing))

    def _earliest(self, here: list[int]) -> list[int]:
        return here


@pytest.mark.parametrize("which", [0, 1, len(SHAKES) - 1])
@pytest.mark.parametrize(("moved", "found"), [(1e-5, True), (1e-3, False), (1.0, False)])
def test_where_last_bits_take_the_reference_as_far_it_is_rounding(
    which: int, moved: float, found: bool
) -> None:
    comparison = FakeComparison(make_case(), gradient(AFTER), {"float32": 1e-2, "float64": 1e-2})
    comparison.moved[which] = moved
    assert bool(comparison.findings()) is found
    assert comparison.skipped[comparison.engine] == ({comparison.key} if moved == 1.0 else set())
    assert comparison.shaken == (len(SHAKES) if found else which + 1)


@pytest.mark.parametrize(("truth", "found"), [(0.0, True), (0.1, False), (INF, False)])
def test_where_rounding_has_taken_the_reference_itself_as_far_it_is_rounding(
    truth: float, found: bool
) -> None:
    comparison = FakeComparison(HALF, gradient(BEFORE), {"float32": 0.3, "float64": 0.0})
    comparison.truth = truth
    assert bool(comparison.findings()) is found


@pytest.mark.parametrize(
    ("truth", "op", "found"),
    [(0.0, BEFORE, True), (0.1, BEFORE, False), (0.0, AFTER, False)],
)
def test_of_values_that_are_apart_bits_are_promised_where_the_reference_has_those_of_float64(
    truth: float, op: int, found: bool
) -> None:
    comparison = FakeComparison(replace(HALF, values="apart"), gradient(op), {})
    comparison.truth = truth
    promised = comparison._promised_bits()
    assert promised(difference(comparison.key, ONE + 1e-6, ONE)) is found


@pytest.mark.parametrize(("value", "found"), [(1.0, True), (1 / 3, False)])
def test_in_float64_bits_are_promised_of_what_fits_in_float32(value: float, found: bool) -> None:
    case = make_case(dtype="float64", values="apart", engines=("fsdp1",))
    comparison = FakeComparison(case, gradient(BEFORE), {})
    comparison.truth, due = value - 1.0, ONE.double() * value
    assert comparison._promised_bits()(difference(comparison.key, due + 1e-15, due)) is found


@pytest.mark.parametrize("op", [BEFORE, AFTER])
@pytest.mark.parametrize(
    ("errors", "found"),
    [
        ({"float32": 1e-6, "float64": 1e-15}, False),
        ({"float32": 1e-5, "float64": 1e-5}, True),
    ],
)
def test_what_float64_takes_away_was_rounding(
    op: int, errors: dict[str, float], found: bool
) -> None:
    comparison = FakeComparison(make_case(), gradient(op), errors)
    findings = comparison.findings()
    assert [f.error for f in findings] == [pytest.approx(1e-5)] * found
    assert comparison.trained == ["float64"]


@pytest.mark.parametrize(
    ("case", "op", "found"),
    [
        (make_case(), BEFORE, True),
        (make_case(), AFTER, False),
        (HALF, BEFORE, True),
        (HALF, AFTER, True),  # with float32 in place of half precision, it counts until the end
    ],
)
def test_an_error_of_the_precision_of_the_case_counts_before_a_step_only(
    case: Case, op: int, found: bool
) -> None:
    assert (
        bool(FakeComparison(case, gradient(op), {"float32": 2.0, "float64": 0.0}).findings())
        is found
    )


@pytest.mark.parametrize(("finer", "found"), [(0.0, False), (2.0, True), (INF, True)])
def test_an_overflow_counts_where_the_finer_run_is_wrong_too(finer: float, found: bool) -> None:
    comparison = FakeComparison(make_case(), gradient(BEFORE), {"float32": INF, "float64": finer})
    assert bool(comparison.findings()) is found


def test_in_float64_an_infinity_is_no_rounding() -> None:
    case = make_case(dtype="float64")
    assert FakeComparison(case, gradient(BEFORE), {"float64": INF}).findings()


@pytest.mark.parametrize(("error", "found"), [(1e-15, False), (1e-13, True)])
def test_what_is_in_float64_already_is_not_run_again(error: float, found: bool) -> None:
    comparison = FakeComparison(make_case(dtype="float64"), gradient(AFTER), {"float64": error})
    assert bool(comparison.findings()) is found
    assert comparison.trained == []


def test_what_the_finer_run_makes_wrong_alone_does_not_count() -> None:
    assert not FakeComparison(
        make_case(), gradient(AFTER), {"float32": 1e-6, "float64": 3e-6}
    ).findings()


def test_a_missing_tensor_needs_no_other_run() -> None:
    comparison = FakeComparison(make_case(), gradient(AFTER), {"float32": 0.0})
    missing = Difference(comparison.key, None, ONE, ())
    comparison.traces = {**comparison.traces, "fsdp1": trace({comparison.key: None})}
    (finding,) = comparison._loose_findings({"fsdp1": [missing]}, {"fsdp1": 9})
    assert finding.detail == "missing"
    assert comparison.trained == []


def test_an_engine_that_refuses_a_finer_case_is_judged_in_the_precision_that_it_has() -> None:
    comparison = FakeComparison(make_case(), gradient(BEFORE), {"float32": 2.0})
    comparison.again = lambda case, engine: None
    assert comparison.findings()


def test_only_losses_are_judged_where_only_losses_are_observed() -> None:
    case = replace(make_case(), observe="losses")
    assert not FakeComparison(case, gradient(AFTER), {"float32": 1e-5, "float64": 1.0}).findings()


def test_half_precision_is_run_again_in_float64_and_with_float32_in_its_place() -> None:
    half = Precision(param="bfloat16", reduce="float32")
    wrap = (WrapGroup(modules=("a",), precision=half), WrapGroup(modules=("",)))
    case = make_case(chain(a=Linear(out=4), n=LayerNorm()), wrap=wrap)
    as_asked = replace(half, param="float32")
    assert [*finer(case).values()] == [
        uniform(case, "float64"),
        lifted(case),
    ]
    assert lifted(case).wrap[0].precision == as_asked
    assert [*finer(make_case()).values()] == [uniform(make_case(), "float64")]


def test_what_no_case_can_be_is_not_run() -> None:
    half = Precision(param="bfloat16")
    wrap = (WrapGroup(modules=("a",)), WrapGroup(modules=("",), precision=half))
    case = make_case(chain(a=Linear(out=4), n=LayerNorm()), wrap=wrap, dtype="float64")
    assert not is_valid(lifted(case))
    assert [*finer(case)] == ["float64"]


def test_policies_have_something_to_cast_in_a_finer_run_too() -> None:
    masters = lifted(HALF, "float64")
    assert masters.fsdp1.precision == Precision(param="float32")
    assert [*finer(HALF).values()] == [uniform(HALF, "float64"), lifted(HALF), masters]
