"""Models that people have are trained alike by ``fully_shard`` and DDP: nothing is reported."""

from __future__ import annotations

import pytest
from user_models import Checked, model

MODELS = (
    "mlp",
    "llama",
    "vit",
    "convnet",
    "dropout",
    "lstm",
    "moe",
    "nested",
    "tokens",
)
FOUR_RANKS = ("dp_shard=4", "dp_replicate=2,dp_shard=2")


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_train_a_model_as_one_process_does_to_the_bit(name: str, checked: Checked):
    checked(model(name)).require("bitwise")


def test_inputs_may_be_keywords(checked: Checked):
    checked(model("keywords")).require("bitwise")


def test_a_model_may_be_built_on_the_meta_device(checked: Checked):
    report = checked(model("mlp", build="build_on_meta"), engines=("fully_shard",))
    report.require("bitwise")


def test_microbatches_are_further_batches(checked: Checked):
    checked(model("llama"), microbatches=2, engines=("fully_shard",)).require("rounding")
    checked(model("tokens"), microbatches=2, engines=("fully_shard",)).require("rounding")


@pytest.mark.slow
def test_replicas_of_shards_train_a_model_alike(checked: Checked):
    report = checked(model("llama"), "dp_replicate=2,dp_shard=2", engines=("fully_shard",))
    report.require("rounding")


def test_each_repeated_child_is_a_block(checked: Checked):
    (training,) = checked(model("llama"), engines=("fully_shard",)).trainings
    assert training.blocks == ("layers.0", "layers.1")


@pytest.mark.parametrize("weight", ["loss_weight", ""])
def test_weights_of_losses_are_those_that_are_given(weight: str, checked: Checked):
    """Without a loop of its own each rank takes the mean over its tokens: with weights, which say
    that each token counts alike, that is a mistake.
    """
    subject = model("tokens", train_step="", loss_weight=weight)
    (training,) = checked(subject, engines=("ddp",)).trainings
    assert training.outcome == ("different" if weight else "equal")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", FOUR_RANKS)
@pytest.mark.parametrize("name", MODELS)
def test_four_ranks_train_a_model_alike(name: str, mesh: str, checked: Checked):
    checked(model(name), mesh, steps=3).require("rounding")
