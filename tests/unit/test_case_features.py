"""Features are computed from what a Case is."""

import re

import pytest
from cases import ADAPTED, make_case
from msgspec.structs import replace

from fuzzshard.analysis.dtypes import lifted
from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.analysis.features import ALL_FEATURES, features
from fuzzshard.case.case import (
    Case,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Block, Call, Child, TensorOp
from fuzzshard.case.options import FSDP1, Delay, Precision, TensorParallel
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.convolutions import Conv1d
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import RMSNorm

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
    schedule=(ops.Forward(), ops.Backward(), ops.Step(), ops.ZeroGrad()),
    wrap=(WrapGroup(modules=("b",)), WrapGroup(modules=("",))),
)
ON, OFF = (ops.SetFlag(flag="requires_gradient_sync", value=value) for value in (True, False))


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
        "engine:ddp",
        "engine:fully_shard",
    }


def test_every_feature_is_described_in_one_line():
    for feature in ALL_FEATURES:
        assert re.fullmatch(r"[a-z0-9_]+:[a-z0-9_]+", feature)
        assert "\n" not in FEATURES[feature]


def test_only_listed_features_are_reported():
    assert features(CASE) <= set(ALL_FEATURES)


def test_a_case_that_is_judged_again_in_other_dtypes_has_listed_features_only():
    half = WrapGroup(modules=("",), precision=Precision(param="bfloat16", reduce="float32"))
    assert "precision:bfloat16" in features(replace(CASE, wrap=(half,)))
    assert features(lifted(replace(CASE, wrap=(half,)))) <= set(ALL_FEATURES)


THAW, FREEZE = (ops.SetRequiresGrad(target="a", value=value) for value in (True, False))
TRAIN = (ops.Forward(), ops.Backward())
HALF = Precision(param="float16")


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"mesh": Mesh(shard=3)}, {"dim:uneven", "mesh:3"}),
        ({"mesh": Mesh(shard=8)}, {"dim:uneven", "dim:smaller_than_mesh", "mesh:larger"}),
        ({"mesh": Mesh(shard=2, replicate=2)}, {"mesh:4", "mesh:hsdp"}),
        ({"mesh": Mesh(shard=2, replicate=1)}, {"mesh:axis_of_one"}),
        ({"ties": (Tie(parameter="c.weight", source="a.bias"),)}, {"reuse:tied_in_group"}),
        ({"ties": (Tie(parameter="b.weight", source="a.bias"),)}, {"reuse:tied_across_groups"}),
        (
            {"freezes": (Freeze(target="b"),)},
            {"freeze:from_start", "freeze:module", "freeze:before_wrap"},
        ),
        (
            {"freezes": (Freeze(target="a.bias", after_wrap=True),)},
            {"freeze:from_start", "freeze:parameter", "freeze:after_wrap", "freeze:mixed_group"},
        ),
        (
            {"wrap": (WrapGroup(modules=("a", "b"), reshard_after_forward=1),)},
            {
                "wrap:list_group",
                "wrap:root_not_wrapped",
                "wrap:parameter_in_no_group",
                "reshard:int",
            },
        ),
        (
            {"mesh": Mesh(shard=1, replicate=1, tensor=2)},
            {"mesh:axis_of_one", "mesh:hsdp_tensor", "mesh:tensor"},
        ),
        ({"mesh": Mesh(shard=2, pipeline=1)}, {"mesh:pipeline"}),
        ({"ignored": ("b",)}, {"option:ignored", "wrap:parameter_in_no_group"}),
        ({"init": "meta"}, {"option:meta"}),
        ({"compile": "eager"}, {"compile:eager"}),
        (
            {"delays": (Delay(site="before_step", milliseconds=1.0, ranks="others"),)},
            {"delay:before_step", "delay:some_ranks"},
        ),
        (
            {"optimizer": Optimizer(foreach=True, exclude=("b",))},
            {"optimizer:foreach", "optimizer:exclude"},
        ),
        (
            {
                "engines": ("ddp", "fully_shard", "fsdp1"),
                "fsdp1": FSDP1(strategy="no_shard", debug="detail"),
            },
            {
                "engine:fsdp1",
                "fsdp1:no_shard",
                "fsdp1:unsharded",
                "fsdp1:detail",
                "fsdp1:flat_params",
                "fsdp1:backward_prefetch_pre",
            },
        ),
        (
            {
                "tensor_parallel": (
                    TensorParallel(module="a", style="colwise", local_output=False),
                )
            },
            {"tensor:colwise", "tensor:dtensor_output"},
        ),
    ],
)
def test_what_a_plan_adds_is_seen(changes, feature):
    assert gained(**changes) == feature


def test_an_adapter_is_seen_and_what_it_adapts_may_be_frozen():
    frozen = {"edge:adapter", "freeze:adapted"}
    case = make_case(ADAPTED, ignored=("a.down", "a.up"), wrap=(WrapGroup(modules=("",)),))
    assert features(case) & {*frozen, "option:added"} == {"edge:adapter"}
    case = replace(case, ignored_by="adding", freezes=(Freeze(target="a.base"),))
    assert features(case) & {*frozen, "option:added"} == {*frozen, "option:added"}
    case = replace(case, freezes=(Freeze(target="a"),))
    assert features(case) & frozen == {"edge:adapter"}


@pytest.mark.parametrize(
    ("rows", "ranks", "empty"),
    [(4, 4, False), (4, 2, False), (3, 4, True), (5, 4, True), (1, 2, True)],
)
def test_a_tensor_parallel_parameter_that_leaves_a_rank_empty_is_seen(rows, ranks, empty):
    model = replace(ROOT, children=(Child(name="a", module=Linear(out=rows)), *ROOT.children[1:]))
    plan = (TensorParallel(module="a", style="colwise"),)
    case = replace(CASE, model=model, mesh=Mesh(shard=1, tensor=ranks), tensor_parallel=plan)
    assert ("tensor:empty_shard" in features(case)) is empty


@pytest.mark.parametrize(
    ("strategy", "mesh", "unsharded"),
    [
        ("full_shard", Mesh(shard=2), False),
        ("full_shard", Mesh(shard=1), True),
        ("full_shard", Mesh(shard=1, replicate=2), False),
        ("hybrid_shard", Mesh(shard=1, replicate=2), True),
        ("hybrid_shard", Mesh(shard=2, replicate=1), False),
    ],
)
def test_fsdp1_shards_over_all_ranks_or_over_one_axis(strategy, mesh, unsharded):
    changed = gained(mesh=mesh, engines=("fsdp1",), fsdp1=FSDP1(strategy=strategy))
    assert ("fsdp1:unsharded" in changed) is unsharded


@pytest.mark.parametrize(
    ("schedule", "feature"),
    [
        (
            (ops.Forward(), ops.Backward(), ops.Step(), ops.Forward(), ops.Backward(), ops.Step()),
            {"several_steps", "no_zero_grad"},
        ),
        (
            (OFF, ops.Forward(), ops.Backward(), ON, ops.Forward(), ops.Backward(), ops.Step()),
            {"no_sync", "microbatches"},
        ),
        ((OFF, ops.Forward(), ops.Backward(), ops.Step()), {"no_sync", "step_unsynced"}),
        (
            (
                replace(OFF, target="b"),
                ops.Forward(),
                ops.Backward(),
                ON,
                ops.Forward(),
                ops.Backward(),
                ops.Step(),
            ),
            {"partial_sync", "microbatches"},
        ),
        ((OFF, ops.Forward(), ON, ops.Backward(), ops.Step()), {"sync_switched"}),
        (
            (ops.Forward(), ops.Forward(), ops.Backward(which="newest"), ops.Step()),
            {"backward_newest", "changed_after_forward"},
        ),
        ((ops.Forward(), ops.Backward(which="oldest"), ops.Step()), set()),
        (
            (ops.Forward(target="b"), ops.Backward(), ops.Step()),
            {"non_root_forward", "non_root_loss", "non_root_first"},
        ),
    ],
)
def test_what_a_schedule_does_is_seen(schedule, feature):
    found = gained(schedule=schedule) - {"reuse:two_forwards", "op:set_sync_of_some"}
    assert found == {f"schedule:{name}" for name in feature}


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"offload": "unpinned"}, {"offload:unpinned"}),
        ({"shard_dim": "last"}, {"shard:last"}),
        ({"all_gather_extension": "negated"}, {"all_gather:negated"}),
        ({"all_gather_extension": "float8"}, {"all_gather:float8"}),
        ({"forward_prefetch": ("b",)}, {"prefetch:forward"}),
        (
            {"precision": Precision(param="bfloat16", cast_inputs=False)},
            {
                *("precision:param", "precision:bfloat16", "precision:reduce_as_param"),
                *("precision:no_cast", "precision:mixed"),
            },
        ),
        (
            {"precision": Precision(reduce="bfloat16", output="float32")},
            {"precision:reduce_only", "precision:output", "precision:mixed"},
        ),
    ],
)
def test_the_options_of_a_group_are_seen(options, feature):
    inner, root = CASE.wrap
    assert gained(wrap=(inner, replace(root, **options))) == feature


@pytest.mark.parametrize(
    ("op", "feature"),
    [
        (ops.Cast(dtype="float64"), {"cast", "cast_before_forward"}),
        (ops.TakeStateDict(), {"take_state_dict", "take_state_dict_before_forward"}),
        (
            ops.TakeStateDict(inference=True),
            {
                "take_state_dict",
                "take_state_dict_before_forward",
                "take_state_dict_in_inference",
            },
        ),
        (ops.SaveState(via="state_dict"), {"save_state_dict"}),
        (ops.CorruptState(how="rebuild"), {"rebuild"}),
        (ops.CorruptState(how="rebuild", mesh=(2, 1)), {"rebuild", "other_mesh"}),
        (ops.CorruptState(how="rebuild", mesh=(2,)), {"rebuild"}),
        (ops.LoadState(assign=True), {"load_assign"}),
        (ops.SetDivideFactor(factor=2.0), {"divide_factor"}),
        (ops.Unshard(async_op=True), {"unshard_async"}),
        (ops.Unshard(async_op=True, wait=True), {"unshard_wait"}),
        (ops.Abort(target="a"), {"abort_forward"}),
        (ops.Abort(target="a", during="backward"), {"abort_backward"}),
        (ops.Reshard(), {"reshard"}),
        (ops.ClipGradNorm(max_norm=1.0), {"clip"}),
        (ops.ClipGradNorm(max_norm=1.0, norm_type="inf"), {"clip", "clip_by_largest"}),
        (ops.ClipGradNorm(max_norm=1.0, error_if_nonfinite=True), {"clip", "clip_finite"}),
        (ops.SetPath(path=1, ranks="others"), {"set_path_on_some_ranks"}),
        (ops.SetFlag(flag="reshard_after_forward", value=False), {"set_reshard_after_forward"}),
    ],
)
def test_what_an_op_does_is_seen(op, feature):
    found = gained(schedule=(op, *CASE.schedule)) - {"schedule:ranks_differ"}
    assert found == {f"op:{name}" for name in feature}


def test_how_a_block_is_called_and_returns_is_seen():
    root = replace(ROOT, passing="dataclass", returns="namedtuple", method="encode")
    assert gained(model=root) == {"passing:dataclass", "returns:namedtuple", "edge:method"}


def test_a_call_with_alternatives_is_seen():
    first, second, _ = ROOT.nodes
    root = replace(ROOT, nodes=(first, replace(second, alternatives=("c",))), outputs=("h1",))
    assert gained(model=root) == {"edge:alternatives"}


def test_an_output_left_out_of_the_loss_is_unused():
    root = replace(ROOT, outputs=("h2", "h1"), returns="tuple")
    kept = (ops.Forward(outputs=(0,)), ops.Backward())
    assert "edge:unused_output" in gained(model=root, schedule=kept)
    assert "edge:unused_output" not in gained(model=root)


def test_a_call_without_gradients_of_a_module_also_called_with_them_is_a_retraversal():
    again = Call(name="h3", module="a", args=("x",), grad=False)
    joined = TensorOp(name="h4", op="add", args=("h2", "h3"))
    root = replace(ROOT, nodes=(*ROOT.nodes, again, joined), outputs=("h4",))
    assert gained(model=root) == {
        "edge:no_grad_call",
        "reuse:no_grad_retraversal",
        "reuse:repeated_call",
        "edge:residual",
        "edge:branch",
    }


def test_a_node_that_nothing_reads_is_an_unused_value():
    unread = TensorOp(name="h3", op="relu", args=("h2",))
    added = gained(model=replace(ROOT, nodes=(*ROOT.nodes, unread)))
    assert added == {"edge:unused_value", "edge:relu", "edge:branch"}


@pytest.mark.parametrize(("width", "seen"), [(1, True), (4, False)])
def test_a_convolution_of_one_channel_is_seen(width, seen):
    case = replace(
        CASE,
        model=replace(ROOT, children=(Child(name="a", module=Conv1d(out=4)), *ROOT.children[1:])),
        inputs=Inputs(batch=2, seq=3, tensors=(TensorSpec(size=width),)),
    )
    assert ("leaf:conv1d_of_one" in features(case)) is seen
