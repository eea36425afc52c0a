"""Training steps of one's own call the model as they like: right ones raise no alarm."""

from __future__ import annotations

import pytest
from user_models import Checked, model

from fuzzshard.checking.subject_script import script
from fuzzshard.errors import UsageError
from fuzzshard.reproducer.forked import ForkedRanks
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import MeshShape, Training

RIGHT = {
    "evaluated": ("fsdp", "build"),
    "twice": ("fsdp", "build"),
    "contrasted": ("ddp", "build"),
    "in_pieces": ("fsdp", "build"),
    "head_alone": ("fsdp", "build_frozen"),
    "accumulated": ("fsdp", "build"),
    "with_teacher": ("ddp", "build"),
    "augmented": ("ddp", "build"),
    "all_at_once": ("ddp", "build_without_dropout"),
}


@pytest.mark.parametrize("step", RIGHT)
def test_a_step_that_is_right_is_equal(step: str, checked: Checked):
    parallelize, build = RIGHT[step]
    subject = model("steps", train_step=step, parallelize=parallelize, build=build)
    report = checked(subject, microbatches=2)
    report.require("rounding")
    compared = {row.kind: row.compared for row in report.trainings[0].rows}
    assert bool(compared["outputs"]) == (step != "all_at_once")
    assert compared["gradients"]


@pytest.mark.parametrize("step", ["twice", "evaluated"])
def test_a_script_runs_it_as_a_check_does(step: str, run_script: ForkedRanks):
    subject = model("steps", train_step=step, parallelize="ddp")
    training = Training(mesh=MeshShape({"dp_shard": 2}), microbatches=2)
    report = TrainingReport(training=training, outcome="different")
    result = run_script(script(subject, report, ()), 2)
    assert not result.fails, result.output


@pytest.mark.slow  # Dynamo is
@pytest.mark.parametrize("parallelize", ["blocks", "whole"])
def test_what_is_compiled_is_equal(parallelize: str, checked: Checked):
    checked(model("compiled", parallelize=parallelize)).require("rounding")


@pytest.mark.parametrize(
    ("parallelize", "mesh"),
    [("one_stage", "pp=2"), ("one_stage", "pp=2,dp_shard=2"), ("two_stages", "pp=2")],
)
def test_each_rank_of_a_pipeline_compares_what_it_has(
    parallelize: str, mesh: str, checked: Checked
):
    report = checked(model("pipeline", parallelize=parallelize), mesh)
    report.require("rounding")
    compared = {row.kind: row.compared for row in report.trainings[0].rows}
    assert compared["gradients"] == 2 * 2 * 2  # steps, layers of the rank, weight and bias
    assert not compared["outputs"]


def test_a_collective_that_float64_breaks_is_gone_through_in_float32(checked: Checked):
    given = {"parallelize": "one_stage", "train_step": "step_with_loss"}
    report = checked(model("pipeline", **given), "pp=2")
    report.require("rounding")
    (training,) = report.trainings
    assert not training.training.finer


def test_microbatches_that_are_summed_are_named(checked: Checked):
    report = checked(model("pipeline", parallelize="sums_of_microbatches"), "pp=2")
    (training,) = report.trainings
    assert training.difference
    assert "2.00 times" in training.difference.looks_like


def test_a_layer_that_no_rank_of_a_pipeline_has_is_named(checked: Checked):
    with pytest.raises(UsageError, match=r"no parameter layers\.3\.bias"):
        checked(model("pipeline", parallelize="last_layer_nowhere"), "pp=2")
