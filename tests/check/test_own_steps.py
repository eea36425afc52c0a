"""Training steps of one's own call the model as they like: right ones raise no alarm."""

from __future__ import annotations

import pytest
from user_models import Checked, model

from fuzzshard.checking.subject_script import script
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
