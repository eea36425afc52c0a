"""A plain model that gets the batches of all ranks as one shows what a step does wrong itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from user_models import Checked, functions_of, model

from fuzzshard.errors import UsageError
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import Subject

NAMED = functions_of(Path(__file__).parent / "planted" / "global_loss.py")


def trained(checked: Checked, *, global_batch: bool = True, **functions: str) -> TrainingReport:
    usual = {"inputs": "batch", "loss": "loss", "parallelize": "parallelize"} | functions
    subject = Subject(
        build=NAMED["build"], **{field: NAMED[name] for field, name in usual.items()}
    )
    return checked(subject, microbatches=2, global_batch=global_batch).trainings[0]


WRONG = {
    "a mean over a rank's own tokens": (
        {},
        "added with the weights 0.50 and 0.50 in place of 0.70 and 0.30 (a mean of the ranks'",
    ),
    "a factor that is missing": (
        {"train_step": "scale_forgotten"},
        "every element is 0.50 times the expected: perhaps divided by 2 ranks once too often",
    ),
    "a division by the number of ranks": (
        {"train_step": "divided_twice", "inputs": "full"},
        "every element is 0.50 times the expected: perhaps divided by 2 ranks once too often",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_a_step_does_wrong_itself_is_seen(mistake: str, checked: Checked):
    functions, words = WRONG[mistake]
    assert trained(checked, global_batch=False, **functions).outcome == "equal"
    report = trained(checked, **functions)
    assert report.outcome == "different"
    assert report.difference is not None
    assert report.difference.kind == "gradients"
    assert report.difference.looks_like.startswith((words, f"the ranks' own gradients, {words}"))


RIGHT = ({"train_step": "right"}, {"inputs": "full"}, {"train_step": "right", "inputs": "full"})


@pytest.mark.parametrize("functions", RIGHT, ids=str)
def test_what_is_right_is_equal(functions: dict[str, str], checked: Checked):
    report = trained(checked, **functions)
    assert report.outcome == "equal"
    assert "gradients" in {row.kind for row in report.rows if row.compared}
    (limit,) = report.limits
    assert limit.startswith("trained without dropout")


def test_padding_that_makes_means_unequal_is_seen(checked: Checked):
    report = checked(model("keywords"), global_batch=True).trainings[0]
    assert report.difference is not None
    assert "weights 0.50 and 0.50 in place of 0.52 and 0.48" in report.difference.looks_like
    assert report.operator is not None
    assert report.operator.how == "none"


@pytest.mark.parametrize("name", ["llama", "vit", "mlp", "lstm"])
def test_models_with_equal_batches_are_equal(name: str, checked: Checked):
    assert checked(model(name), global_batch=True).trainings[0].outcome == "equal"


def test_batches_that_cannot_be_joined_are_refused(checked: Checked):
    with pytest.raises(UsageError, match="--global-batch cannot join, pad them"):
        checked(model("tokens", loss_weight="", train_step=""), global_batch=True)


def test_weights_of_batches_are_refused_beside_it(checked: Checked):
    with pytest.raises(UsageError, match="--loss-weight says what batches weigh"):
        checked(model("tokens"), global_batch=True)
