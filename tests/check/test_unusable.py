"""What cannot be checked is said in a line, and no model is accused of it."""

from __future__ import annotations

import pytest
from user_models import Checked, model

from fuzzshard.errors import EXIT_INCONCLUSIVE, UsageError

UNUSABLE = {
    ("build", "build_that_raises"): "build raised FileNotFoundError: model.yaml",
    (
        "build",
        "build_of_a_library",
    ): "(unusable.py:55), from RuntimeError: no operator nms",
    ("build", "build_nothing"): "build returned NoneType",
    ("build", "build_frozen"): "without trainable parameters",
    ("inputs", "batch_of_another_size"): "shapes cannot be multiplied (3x3 and 4x4)",
    ("inputs", "batch_with_another_name"): "unexpected keyword argument 'images'",
    ("inputs", "batch_that_raises"): "inputs raised FileNotFoundError: data.bin",
    ("inputs", "batch_without_arguments"): "inputs raised TypeError",
    ("inputs", "batch_drawn_anew"): "seed it",
    ("inputs", "batch_of_other_ranks"): "shapes cannot be multiplied",
    ("loss", "loss_of_rows"): "loss gave no scalar",
}


@pytest.mark.parametrize(("field", "function"), UNUSABLE, ids=lambda text: text)
def test_what_cannot_be_used_is_named(field: str, function: str, checked: Checked):
    with pytest.raises(UsageError) as caught:
        checked(model("unusable", **{field: function}), engines=("fully_shard",))
    assert UNUSABLE[field, function] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_that_is_not_there_is_named(checked: Checked):
    subject = model("unusable")
    for build in ("no_such.module:build", "nowhere.py:build", subject.build.replace("build", "b")):
        with pytest.raises(UsageError):
            checked(type(subject)(build=build, inputs=subject.inputs))


def test_a_model_that_differs_from_itself_is_not_judged(checked: Checked):
    report = checked(model("unusable", build="build_noisy"), engines=("fully_shard",))
    assert report.exit_code == EXIT_INCONCLUSIVE
    assert "differs from itself" in report.trainings[0].message


def test_a_model_that_an_engine_refuses_is_not_judged(checked: Checked):
    report = checked(model("unusable", build="build_scaled"), engines=("fully_shard",))
    assert report.exit_code == EXIT_INCONCLUSIVE
    assert "Change scale to a 1D tensor" in report.trainings[0].message
    assert "ignored_params" in report.trainings[0].message
    assert checked(model("unusable", build="build_scaled"), engines=("ddp",)).exit_code == 0


def test_what_is_advised_for_a_scalar_parameter_trains_it_as_the_plain_model(checked: Checked):
    ignoring = {"build": "build_scaled", "parallelize": "parallelize_ignoring_scalars"}
    advised = checked(model("unusable", **ignoring, train_step="step_reducing_scalars"))
    advised.require("rounding")
    halfway = checked(model("unusable", **ignoring, train_step="step_without_scalars"))
    difference = halfway.trainings[0].difference
    assert difference is not None
    assert difference.name == "scale"
    assert difference.looks_like == "equal to this rank's own gradient: never reduced"


def test_an_error_of_one_rank_comes_before_what_others_make_of_it(checked: Checked):
    subject = model("unusable", parallelize="parallelize_that_raises_on_one_rank")
    (training,) = checked(subject).trainings
    assert training.outcome == "error"
    assert "OSError: disk quota exceeded" in training.message
    assert "parallelize_that_raises_on_one_rank (unusable.py" in training.message


@pytest.mark.slow  # ranks are waited for
def test_ranks_that_wait_for_one_another_hang(checked: Checked):
    (training,) = checked(model("unusable", parallelize="parallelize_that_waits")).trainings
    assert training.outcome == "hang"
    first, *ranks = training.message.splitlines()
    assert first.startswith("the training has not ended after ")
    assert ranks[0].startswith("rank 0 waits in barrier (")
    assert "called by parallelize_that_waits (unusable.py:" in ranks[0]
    assert ranks[0].endswith(", at parallelize")
    assert ranks[1].startswith("rank 1 ")
    assert "in parallelize_that_waits" in training.stacks


def test_a_mesh_without_data_is_named_where_nobody_says_what_it_is_for(checked: Checked):
    with pytest.raises(UsageError, match="the mesh pp=2 has no axis along which ranks get data"):
        checked(model("mlp", parallelize=""), "pp=2")
