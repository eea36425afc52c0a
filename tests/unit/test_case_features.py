"""Features are computed from what a Case is."""

import re

import pytest
from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Inputs, Mesh, TensorSpec, Tie, WrapGroup
from fuzzshard.case.feature_names import FEATURES
from fuzzshard.case.features import ALL_FEATURES, features
from fuzzshard.case.graph import Block, Call, Child, Linear, RMSNorm, TensorOp
from fuzzshard.case.schedule import Backward, Forward, SetFlag, Step, ZeroGrad

ROOT = Block(
    children=(
        Child(name="a", module=Linear(out=4)),
        Child(name="b", module=RMSNorm()),
        Child(name="c", module=RMSNorm()),
    ),
    nodes=tuple(
        Call(name=f"h{i}", module=m, args=(v,))
        for i, (m, v) in enumerate([("a", "x"), ("b", "h0"), ("c", "h1")])
    ),
    outputs=("h2",),
)
CASE = Case(
    seed=0,
    model=ROOT,
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward(), Step(), ZeroGrad()),
    wrap=(WrapGroup(modules=("b",)), WrapGroup(modules=("",))),
)
ON, OFF = (SetFlag(flag="requires_gradient_sync", value=value) for value in (True, False))


def gained(**changes):
    """The features that a case has more than the plain one."""
    return features(replace(CASE, **changes)) - features(CASE)


def test_a_plain_case_has_few_features():
    assert features(CASE) == {
        "leaf:linear",
        "leaf:rms_norm",
        "dim:power_of_two",
        "wrap:several_groups",
        "wrap:root",
        "reshard:none",
        "mesh:2",
        "schedule:zero_grad_to_none",
        "optimizer:sgd",
        "dtype:float32",
        "values:gaussian",
        "loss:dot",
    }


def test_every_feature_is_described_in_one_line():
    for feature in ALL_FEATURES:
        assert re.fullmatch(r"[a-z]+:[a-z0-9_]+", feature)
        assert "\n" not in FEATURES[feature]


def test_only_listed_features_are_reported():
    assert features(CASE) <= set(ALL_FEATURES)


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"mesh": Mesh(shard=3)}, {"dim:uneven", "mesh:3"}),
        ({"mesh": Mesh(shard=8)}, {"dim:uneven", "dim:smaller_than_mesh", "mesh:larger"}),
        ({"mesh": Mesh(shard=2, replicate=2)}, {"mesh:4", "mesh:hsdp"}),
        ({"mesh": Mesh(shard=2, replicate=1)}, {"mesh:axis_of_one"}),
        ({"ties": (Tie(parameter="c.weight", source="a.bias"),)}, {"reuse:tied_in_group"}),
        ({"ties": (Tie(parameter="b.weight", source="a.bias"),)}, {"reuse:tied_across_groups"}),
        ({"freezes": (Freeze(target="b"),)}, {"freeze:module", "freeze:before_wrap"}),
        (
            {"freezes": (Freeze(target="a.bias", after_wrap=True),)},
            {"freeze:parameter", "freeze:after_wrap", "freeze:mixed_group"},
        ),
        (
            {"wrap": (WrapGroup(modules=("a", "b"), reshard_after_forward=1),)},
            {"wrap:list_group", "wrap:root_not_wrapped", "wrap:parameter_in_no_group", "reshard:int"},
        ),
    ],
)
def test_what_a_plan_adds_is_seen(changes, feature):
    assert gained(**changes) == feature


@pytest.mark.parametrize(
    ("schedule", "feature"),
    [
        ((Forward(), Backward(), Step(), Forward(), Backward(), Step()), {"several_steps", "no_zero_grad"}),
        ((OFF, Forward(), Backward(), ON, Forward(), Backward(), Step()), {"no_sync", "microbatches"}),
        ((OFF, Forward(), Backward(), Step()), {"no_sync", "step_unsynced"}),
        (
            (replace(OFF, target="b"), Forward(), Backward(), ON, Forward(), Backward(), Step()),
            {"partial_sync", "microbatches"},
        ),
        ((OFF, Forward(), ON, Backward(), Step()), set()),
        ((Forward(), Forward(), Backward(which="newest"), Step()), {"backward_newest"}),
        ((Forward(), Backward(which="oldest"), Step()), set()),
        ((Forward(target="b"), Backward(), Step()), {"non_root_forward"}),
    ],
)
def test_what_a_schedule_does_is_seen(schedule, feature):
    found = gained(schedule=schedule) - {"reuse:two_forwards"}
    assert found == {f"schedule:{name}" for name in feature}


def test_an_output_left_out_of_the_loss_is_unused():
    root = replace(ROOT, outputs=("h2", "h1"), returns="tuple")
    kept = (Forward(outputs=(0,)), Backward())
    assert "edge:unused_output" in gained(model=root, schedule=kept)
    assert "edge:unused_output" not in gained(model=root)


def test_a_call_without_gradients_of_a_module_also_called_with_them_is_a_retraversal():
    again = Call(name="h3", module="a", args=("x",), grad=False)
    joined = TensorOp(name="h4", op="add", args=("h2", "h3"))
    root = replace(ROOT, nodes=(*ROOT.nodes, again, joined), outputs=("h4",))
    assert gained(model=root) == {
        "reuse:no_grad_retraversal",
        "reuse:repeated_call",
        "edge:residual",
        "edge:branch",
    }


def test_a_node_that_nothing_reads_is_an_unused_value():
    unread = TensorOp(name="h3", op="relu", args=("h2",))
    added = gained(model=replace(ROOT, nodes=(*ROOT.nodes, unread)))
    assert added == {"edge:unused_value", "edge:relu", "edge:branch"}
