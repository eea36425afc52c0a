"""Which case and verdict a run of a case comes to."""

from __future__ import annotations

import pytest
from cases import make_case
from msgspec.structs import replace
from verdicts import PASS, FakeWorld, divergence

from fuzzshard.campaign.judge import judge_clearly
from fuzzshard.case.case import Freeze
from fuzzshard.parts.ops import SetRequiresGrad
from fuzzshard.verdict import Verdict

WIDE = divergence(engine="ddp", op=3, comparison="precision")
FINDING = divergence(engine="ddp")
HALF = make_case(dtype="bfloat16")


def in_float64(verdict: Verdict) -> FakeWorld:
    return FakeWorld(lambda case: verdict if case.dtype == "float64" else WIDE)


@pytest.mark.parametrize("verdict", [PASS, WIDE, FINDING], ids=lambda v: str(v.status))
def test_the_verdict_of_a_case_in_the_highest_precision_stands(verdict: Verdict) -> None:
    case = make_case(dtype="float64")
    assert judge_clearly(in_float64(verdict), case) == (case, verdict)


def test_a_wrong_loss_is_looked_at_with_everything_observed() -> None:
    loss = divergence("loss", "ddp")
    case = make_case(observe="losses")
    world = FakeWorld(lambda case: loss if case.observe == "losses" else FINDING)
    assert judge_clearly(world, case) == (make_case(), FINDING)
    world = FakeWorld(lambda case: loss if case.observe == "losses" else PASS)
    assert judge_clearly(world, case) == (case, loss)


def wrong_at(op: int, oracle: str, comparison: str) -> Verdict:
    return divergence(oracle, op=op, comparison=comparison)


def test_what_low_precision_shows_late_is_a_finding_of_the_case_in_higher_precision() -> None:
    case, late, early = (
        HALF,
        wrong_at(2, "parameter", "precision"),
        wrong_at(1, "gradient", "bounded"),
    )
    world = FakeWorld(lambda case: early if case.dtype == "float32" else late)
    assert judge_clearly(world, case) == (make_case(), early)


@pytest.mark.parametrize("precise", [PASS, WIDE, wrong_at(2, "parameter", "bounded")])
def test_what_low_precision_shows_stays_where_higher_precision_shows_nothing_earlier(
    precise: Verdict,
) -> None:
    case, late = HALF, wrong_at(2, "parameter", "precision")
    world = FakeWorld(lambda case: precise if case.dtype == "float32" else late)
    assert judge_clearly(world, case) == (case, late)


def test_where_engines_train_more_than_the_reference_losses_are_all_there_is_to_look_at() -> None:
    more = SetRequiresGrad(target="", value=True, engines_only=True)
    frozen = make_case(freezes=(Freeze(target=""),), observe="losses")
    case = replace(frozen, schedule=(more, *frozen.schedule))
    world = FakeWorld(lambda case: FINDING)
    assert judge_clearly(world, case) == (case, FINDING)
    assert judge_clearly(world, frozen)[0].observe == "everything"
