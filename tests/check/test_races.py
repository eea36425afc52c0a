"""A check watches the streams of a model, where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from user_models import Checked, model

from fuzzshard.checking.check import Checker, trainings
from fuzzshard.commands.check import Compared
from fuzzshard.subject.subject import MeshShape
from fuzzshard.world import WorldConfig

PLANTED = Path(__file__).parents[2] / "benchmarks" / "faults" / "streams" / "mutants"


def test_fully_shard_waits_for_everything(checked: Checked) -> None:
    (training,) = checked(model("resumed"), engines=("fully_shard",), races=True).trainings
    assert (training.outcome, training.races, training.limits) == ("equal", (), ())


def test_what_cannot_be_watched_is_a_limit(checked: Checked) -> None:
    (training,) = checked(model("resumed"), engines=("ddp",), races=True).trainings
    assert training.outcome == "equal"
    assert any("only fully_shard has streams" in limit for limit in training.limits)


@pytest.mark.slow
def test_a_missing_order_is_a_difference_though_all_values_are_equal() -> None:
    fault = str(PLANTED / "copy_out_waits_for_gather.py")
    subject = model("resumed")
    (run,) = trainings(
        subject,
        [MeshShape.parse("dp_shard=2")],
        ("fully_shard",),
        steps=2,
        microbatches=1,
        seed=0,
        races=True,
    )
    with Checker(subject, WorldConfig(size=2, preload=(fault,)), patience=60.0) as checker:
        report = checker.run(run)
    assert (report.outcome, report.signature) == ("different", "different/race")
    assert report.difference is None
    assert all(row.reached != "different" for row in report.rows)
    assert any("split_with_sizes_copy" in line for line in report.lines())


def test_it_is_asked_for() -> None:
    assert [run.races for run in Compared(races=True).trainings(model("resumed"))] == [True, True]
    assert not Compared().trainings(model("resumed"))[0].races
