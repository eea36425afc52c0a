"""Mistakes that users make are found, by the name of the first parameter and in words."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace
from user_models import Checked, mistake, model

OWN = "equal to this rank's own gradient: never reduced"
STALE = "the optimizer has none of the model's parameters"
SUM = "every element is 2.00 times the expected: perhaps a sum over 2 ranks"
HALF = "every element is 0.50 times the expected: perhaps divided by 2 ranks"
FIRST = "embedding.weight"
TWO = ("embedding.weight and head.weight are parameters of their own", "are one parameter")


@dataclasses.dataclass(frozen=True)
class Found:
    """What a report says first: of which tensor, when, and what it looks like.

    ``values`` are in what was observed and what was expected. ``build`` replaces the model,
    ``loss_weight`` the weight of a batch.
    """

    kind: str
    name: str
    looks_like: str = ""
    step: int = 0
    values: tuple[str, str] = ("", "")
    build: str = ""
    mesh: str = "dp_shard=2"
    loss_weight: str = ""
    microbatches: int = 1


FOUND = {
    "averages_of_shards": Found(
        "buffers", "average", "a shard: made of what one rank has?", step=-1
    ),
    "behind_a_key_bias": Found("gradients", "head.weight", OWN),
    "buffer_lost_by_meta": Found(
        "buffers", "scales", "did to_empty leave it without values?", step=-1
    ),
    "buffer_of_the_rank": Found("buffers", "projection", "differs between ranks", step=-1),
    "clipped_by_local_norms": Found("gradients", FIRST, "by the norm of its own shards?"),
    "divided_at_the_root": Found("gradients", FIRST, HALF),
    "divided_by_a_constant": Found(
        "gradients", FIRST, "right if --train-step divides by a constant"
    ),
    "divided_by_one": Found("gradients", FIRST, SUM),
    "drawn_after_sharding": Found(
        "parameters", FIRST, "its 2 shards are equal: does each rank draw the same", step=-1
    ),
    "evaluation_mode": Found("outputs", "1"),
    "frozen_by_name": Found("gradients", "head.weight", "frozen here, and not in the plain model"),
    "gradients_broadcast": Found("gradients", FIRST, "rank 0's value on all ranks"),
    "mean_of_means": Found("gradients", FIRST, "a mean of the ranks' means"),
    "mean_of_each_batch": Found(
        "gradients",
        FIRST,
        "with the weights 0.50 and 0.50 in place of 0.27 and 0.73",
        loss_weight="weigh",
    ),
    "microbatch_left_out_by_ddp": Found(
        "gradients", FIRST, "unequal numbers of batches: rank 0 on 2, rank 1 on 1", microbatches=2
    ),
    "no_module_called": Found("gradients", "0.weight", OWN),
    "no_sync_left_on": Found("gradients", FIRST, OWN),
    "nothing_loaded": Found("parameters", FIRST, step=-1),
    "optimizer_of_its_own": Found("parameters", "", STALE, values=("0 updates", "1 updates")),
    "optimizer_too_early": Found("parameters", FIRST, f"never updated: {STALE}"),
    "parameter_replaced": Found("gradients", "head.weight", OWN),
    "parameters_ignored": Found("gradients", "norm.weight", OWN),
    "ranks_initialised_apart": Found("parameters", FIRST, step=-1),
    "reduced_twice": Found("gradients", FIRST, SUM),
    "part_in_evaluation": Found(
        "outputs", "0.1", "0 is in evaluation mode, in the plain model in training mode"
    ),
    "scheduled_before_updating": Found(
        "parameters",
        FIRST,
        "lr of the optimizer is 0.0005 in place of 0.00025: a change for each microbatch?",
    ),
    "scheduled_per_microbatch": Found(
        "parameters", "", "one for each microbatch?", values=("1 updates", "2 updates")
    ),
    "thawed_after_wrapping": Found(
        "gradients",
        "head.weight",
        "(its requires_grad changed after the model was wrapped)",
        step=1,
    ),
    "thawed_by_wrapping": Found("parameters", "head.weight", "trained here, and frozen in the"),
    "replicas_forgotten": Found(
        "gradients",
        FIRST,
        "the mean over dp_shard: not reduced over dp_replicate",
        mesh="dp_replicate=2,dp_shard=2",
    ),
    "replicas_not_broadcast": Found("parameters", "head.weight", "differs between", step=-1),
    "root_not_wrapped": Found("gradients", FIRST, OWN),
    "shards_mixed": Found("gradients", FIRST, "are the ranks' shards reduced with one another?"),
    "stale_gradients": Found("gradients", FIRST, "stale by one step", step=1),
    "sync_left_off": Found(
        "gradients",
        FIRST,
        "synchronisation is never turned on",
        values=("nothing", "float32[8, 4]"),
    ),
    "tie_lost_by_meta": Found("parameters", FIRST, "tie", -1, TWO, "build_tied"),
    "tie_lost_by_replacing": Found("parameters", FIRST, "tie", -1, TWO, "build_tied"),
    "updates_scaled_by_shard": Found("parameters", FIRST),
    "wrapper_bypassed": Found("gradients", FIRST, OWN),
}

RAISED = {
    "factor_that_gloo_refuses": ("RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo",),
    "method_bypassed": ("got mixed torch.Tensor and DTensor", "encode (models.py"),
    "mixed_dtypes": ("FSDP expects uniform original parameter dtype",),
    "sharded_parameter_replaced": ("no attribute '_local_tensor'",),
    "uneven_shards_mixed": ("a collective failed", "no uneven shards?", "rank 1"),
    "tie_lost_by_sharding": ("Parameter 'head.weight' is shared with", "same FSDP group"),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_first_difference_says_what_the_mistake_did(name: str, checked: Checked):
    expected = FOUND[name]
    steps = max(1, expected.step + 1)
    more = {"build": expected.build, "loss_weight": expected.loss_weight}
    subject = mistake(name, **{field: named for field, named in more.items() if named})
    report = checked(subject, expected.mesh, steps=steps, microbatches=expected.microbatches)
    assert report.exit_code == 1
    difference = report.trainings[0].difference
    assert difference is not None
    assert (difference.kind, difference.name) == (expected.kind, expected.name)
    assert difference.step == expected.step
    assert expected.looks_like in difference.looks_like
    observed, due = expected.values
    assert observed in difference.observed
    assert due in difference.expected


UNSEEN = {
    "mean_of_each_batch": "what each weighs within train_step is not checked",
    "ranks_seeded_alike": "all ranks are seeded with 1234",
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_shows_nowhere_is_said_not_to_be_checked(name: str, checked: Checked):
    (training,) = checked(mistake(name)).trainings
    assert training.outcome == "equal"
    assert UNSEEN[name] in " ".join(training.limits)


def test_a_seed_of_all_ranks_is_seen_within_a_step_and_none_where_nobody_sets_one(
    checked: Checked,
):
    for step, said in (("seeding", UNSEEN["ranks_seeded_alike"]), ("", "draws random numbers")):
        subject = mistake("ranks_seeded_alike", parallelize="by_ddp", train_step=step)
        (training,) = checked(subject).trainings
        (limit,) = training.limits
        assert said in limit


def test_of_values_that_are_replaced_it_is_said_that_shards_are_equal(checked: Checked):
    (training,) = checked(mistake("drawn_after_sharding", build="build_on_meta")).trainings
    assert training.outcome == "equal"
    (limit,) = training.limits
    assert "replaced and not compared; the shards of embedding.weight are equal" in limit


@pytest.mark.slow  # ranks are waited for
def test_a_rank_that_leaves_out_a_microbatch_is_told_from_those_that_do_not(checked: Checked):
    (training,) = checked(mistake("microbatch_left_out"), microbatches=2).trainings
    assert training.outcome == "hang"
    _, first, second, unequal = training.message.splitlines()
    assert first.startswith("rank 0 waits in ")
    assert first.endswith(", at step 0, train_step, 2 forwards begun")
    assert second.endswith(", at step 0, train_step, 1 forward begun")
    assert unequal.startswith(
        "unequal numbers of forwards have begun: rank 0 has 2, rank 1 has 1; do ranks run"
    )


@pytest.mark.parametrize("name", RAISED)
def test_what_torch_refuses_is_an_error_in_its_words(name: str, checked: Checked):
    tied = {"build": "build_tied"} if name.startswith("tie") else {}
    report = checked(mistake(name, **tied))
    assert report.exit_code == 1
    (training,) = report.trainings
    assert training.outcome == "error"
    assert training.difference is None
    for words in RAISED[name]:
        assert words in training.message


RIGHT = {
    "blocks are wrapped": {},
    "a tie": {"build": "build_tied"},
    "the root alone is wrapped": {"parallelize": "root_only"},
    "DDP": {"parallelize": "by_ddp"},
    "a frozen head": {"build": "build_frozen"},
    "a frozen part that drops out": {
        "build": "build_with_frozen_part",
        "parallelize": "root_only",
        "inputs": "floats",
        "loss": "",
    },
    "a head that trains later": {"build": "build_frozen", "train_step": "thawed_after_wrapping"},
    "a scheduler for each step": {"train_step": "scheduled_per_step"},
    "averages of whole parameters": {
        **{"build": "Averaged", "parallelize": "root_only", "inputs": "floats", "loss": ""},
        "train_step": "averages_of_parameters",
    },
    "another optimizer": {"optimizer": "descent"},
}


@pytest.mark.parametrize("program", RIGHT)
def test_without_a_mistake_nothing_is_reported(program: str, checked: Checked):
    subject = mistake("correct", **RIGHT[program])
    for report in checked(subject, steps=3, microbatches=2).trainings:
        assert report.outcome == "equal"
        assert report.operator is None


@pytest.mark.parametrize(
    ("name", "difference"), [("mixed_precision", None), ("summed_in_bfloat16", "gradients")]
)
def test_in_bfloat16_a_mistake_is_told_from_rounding(
    name: str, difference: str | None, checked: Checked
):
    subject = replace(model("vit"), parallelize=mistake(name).parallelize)
    (training,) = checked(subject).trainings
    assert (training.difference and training.difference.kind) == difference
    (gradients,) = (row for row in training.rows if row.kind == "gradients")
    assert gradients.compared > gradients.left_out
