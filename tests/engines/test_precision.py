"""Mixed precision of stock torch is what the reference makes of it, bit for bit up to two
ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    ZERO,
    call,
    chain,
    children,
    float_inputs,
    graph,
    groups,
    make_case,
    tensor_op,
)
from msgspec.structs import replace

from fuzzshard.case.case import Case, Checkpoint, EngineName, Freeze, Mesh, Optimizer, WrapGroup
from fuzzshard.case.graph import Block, Passing, Returns
from fuzzshard.case.options import FSDP1, ParameterDtype, Precision
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import LayerNorm, RMSNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import (
    Cast,
    Forward,
    RegisterParameterHook,
    SetFlag,
    SetGradDtype,
    SetRequiresGrad,
)
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World

NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
HALF = Precision(param="bfloat16", reduce="float32")
ACCUMULATED = (
    NO_SYNC,
    FORWARD,
    BACKWARD,
    AGAIN,
    BACKWARD,
    SYNC,
    AGAIN,
    BACKWARD,
    STEP,
    ZERO,
    FORWARD,
    BACKWARD,
)
BF16 = Precision(param="bfloat16", reduce="float32")
POLICIES = {
    f"{param}-{reduce}-{output}": Precision(param=param, reduce=reduce, output=output)
    for param, reduce, output in itertools.product(
        ("bfloat16", "float16", None), ("float32", "bfloat16", None), ("float32", None)
    )
}
CHAIN = chain(
    a=Linear(out=6),
    g=Activation(fn="gelu"),
    s=RawParameter(),
    n=RMSNorm(),
    m=MLP(hidden=7),
    l=LayerNorm(),
)
HSDP = Mesh(replicate=2, shard=1)
OF_TORCH_2_13 = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="what 2.13 does; other versions may do better"
)


def in_precision(precision: Precision | None, case: Case) -> Case:
    return replace(case, wrap=tuple(replace(group, precision=precision) for group in case.wrap))


def assert_passes(verdict: Verdict, *comparisons: str) -> None:
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert verdict.comparison in (comparisons or ("bitwise",))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_a_policy_holds(two_ranks: World, policy: Precision) -> None:
    assert_passes(two_ranks.run(in_precision(policy, make_case(CHAIN))))


def variants() -> Iterator[tuple[str, Case]]:
    """One case for each thing that meets mixed precision."""
    root_only = groups(ROOT, reshard=False)
    yield "accumulation", make_case(CHAIN, ACCUMULATED)
    yield "accumulation without resharding", make_case(CHAIN, ACCUMULATED, wrap=root_only)
    yield (
        "two forwards, one backward",
        make_case(CHAIN, (FORWARD, AGAIN, BACKWARD, STEP, FORWARD, BACKWARD)),
    )
    yield "hybrid sharding", make_case(CHAIN, mesh=HSDP)
    yield "hybrid accumulation", make_case(CHAIN, ACCUMULATED, mesh=HSDP)
    yield "one rank", make_case(CHAIN, mesh=1)
    yield "list groups", make_case(CHAIN, wrap=groups(("a", "m"), ROOT))
    yield "adam", make_case(CHAIN, optimizer=Optimizer(kind="adam", lr=0.01))
    yield (
        "attention",
        make_case(chain(a=Attention(heads=2), b=MLP(hidden=6)), inputs=float_inputs(4, seq=3)),
    )
    yield (
        "checkpointing",
        make_case(
            CHAIN,
            checkpoints=(Checkpoint(module="a"), Checkpoint(module="m", implementation="utils")),
        ),
    )
    yield (
        "freezing and unfreezing",
        make_case(
            CHAIN,
            (
                *TWO_STEPS,
                SetRequiresGrad(target="m.up", value=True),
                ZERO,
                FORWARD,
                BACKWARD,
                STEP,
            ),
            freezes=(Freeze(target="m.up"),),
        ),
    )
    yield (
        "a frozen module in half precision",
        make_case(
            CHAIN,
            dtypes=(ParameterDtype(target="m", dtype="bfloat16"),),
            freezes=(Freeze(target="m"),),
        ),
    )


VARIANTS = dict(variants())


MEETS = {
    "bfloat16": (BF16, [*VARIANTS]),
    "float16": (Precision(param="float16"), ["adam", "attention"]),
    "reduce": (
        Precision(reduce="bfloat16"),
        [name for name in VARIANTS if "accumulation" in name or "hybrid" in name],
    ),
}
"""Policies, and what they are tried with in CI: one with everything; what differs from it in the
dtype of parameters with other arithmetic, and what differs in the reduction with others of that.
"""


@pytest.mark.parametrize(
    ("policy", "case"),
    [
        pytest.param(
            policy,
            case,
            id=f"{name}-{variant}",
            marks=() if variant in variants else pytest.mark.slow,
        )
        for name, (policy, variants) in MEETS.items()
        for variant, case in VARIANTS.items()
    ],
)
def test_mixed_precision_meets_other_options(
    two_ranks: World, case: Case, policy: Precision
) -> None:
    if case.dtypes and policy.param is None:
        pytest.skip("nothing casts the inputs of the frozen module")
    case = in_precision(policy, case)
    assert_passes(two_ranks.run(case), "bitwise", "precision")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [Mesh(shard=3), Mesh(shard=4), Mesh(replicate=2, shard=2)], ids=str
)
@pytest.mark.parametrize("schedule", [TWO_STEPS, ACCUMULATED], ids=["two steps", "accumulation"])
def test_larger_meshes_differ_by_rounding(four_ranks: World, mesh: Mesh, schedule: tuple) -> None:
    for policy in (BF16, Precision(param="float16"), Precision(reduce="bfloat16")):
        case = in_precision(policy, make_case(CHAIN, schedule, mesh=mesh))
        assert_passes(four_ranks.run(case), "bitwise", "precision")


def structured(passing: Passing, returns: Returns) -> Case:
    """A wrapped block that takes and returns its values in a structure."""
    inner = Block(
        children=children(p=Linear(out=5), q=Linear(out=5)),
        nodes=(call("h", "p", "x"), call("g", "q", "y")),
        outputs=("h",) if returns == "tensor" else ("h", "g"),
        inputs=("x", "y"),
        passing=passing,
        returns=returns,
    )
    parts = ("u", "z") if returns == "tensor" else ("u.0", "u.1")
    nodes = (call("z", "k", "x"), call("u", "i", "z", "z"), tensor_op("s", "add", *parts))
    root = Block(children=children(i=inner, k=Linear(out=5)), nodes=nodes, outputs=("s",))
    return make_case(root, wrap=groups("i", ROOT))


@pytest.mark.parametrize(
    ("passing", "returns"),
    [
        pytest.param(
            *each, marks=() if "positional" in each or "tensor" in each else pytest.mark.slow
        )
        for each in itertools.product(get_args(Passing), get_args(Returns))
    ],
)
def test_structured_values_are_cast(two_ranks: World, passing: Passing, returns: Returns) -> None:
    """Dataclasses too: ``_apply_to_tensors`` (torch/distributed/utils.py) takes them apart. It
    does so before forward and after it, each time apart from the other.
    """
    policy = Precision(param="bfloat16", output="float32")
    assert_passes(two_ranks.run(in_precision(policy, structured(passing, returns))))


def test_one_submodule_may_be_in_half_precision(two_ranks: World) -> None:
    half = Precision(param="float16", output="float32")
    wrap = (WrapGroup(modules=("m",), precision=half), *groups("a", ROOT))
    assert_passes(two_ranks.run(make_case(CHAIN, wrap=wrap)))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("policy", [None, BF16], ids=str)
def test_a_model_may_be_cast_before_its_first_forward(
    two_ranks: World, kind: str, policy: Precision
) -> None:
    optimizer = Optimizer(kind=kind, lr=0.01, foreach=True)  # type: ignore[arg-type]
    case = make_case(
        chain(a=MLP(hidden=16)), (Cast(dtype="float64"), *TWO_STEPS), optimizer=optimizer
    )
    verdict = two_ranks.run(in_precision(policy, case))
    assert_passes(verdict)
    assert set(verdict.notes) == {"ddp"}


def test_a_cast_after_the_first_forward_is_outside_the_contract(two_ranks: World) -> None:
    verdict = two_ranks.run(make_case(schedule=(*TWO_STEPS, Cast(dtype="float64"), FORWARD)))
    assert_passes(verdict)
    assert "cast after the first forward" in verdict.notes["fully_shard"]


@pytest.mark.parametrize(
    ("dtype", "use_orig_params", "schedule"),
    [
        pytest.param("bfloat16", False, TWO_STEPS, id="bfloat16-flat-two steps"),
        pytest.param("bfloat16", True, ACCUMULATED, id="bfloat16-original-accumulation"),
        pytest.param("float16", False, ACCUMULATED, id="float16-flat-accumulation"),
        pytest.param("float16", True, TWO_STEPS, id="float16-original-two steps"),
    ],
)
def test_fsdp1_has_one_policy(
    two_ranks: World, dtype: Dtype, use_orig_params: bool, schedule: tuple
) -> None:
    options = FSDP1(
        precision=Precision(param=dtype, reduce="float32"), use_orig_params=use_orig_params
    )
    verdict = two_ranks.run(
        make_case(CHAIN, schedule, engines=("fsdp1", "fully_shard"), fsdp1=options)
    )
    assert_passes(verdict, "bitwise", "precision")
    assert verdict.notes == {
        "fully_shard": "not applicable: the mixed precision of the case is that of FSDP1"
    }


@OF_TORCH_2_13
@pytest.mark.parametrize("policy", [BF16, Precision(param="bfloat16")], ids=str)
def test_a_group_that_is_frozen_at_first_cannot_be_trained_in_half_precision(
    two_ranks: World, policy: Precision
) -> None:
    """``_init_mp_dtypes`` of the first forward finds no trainable parameter to take the dtypes
    of.
    """
    schedule = (*TWO_STEPS[:4], SetRequiresGrad(target="a", value=True), AGAIN, BACKWARD, STEP)
    case = make_case(schedule=schedule, freezes=(Freeze(target="a"),))
    verdict = two_ranks.run(in_precision(policy, case))
    assert (verdict.status, verdict.findings[0].op) == (Status.CRASH, 6)
    assert "attempting to assign a gradient" in verdict.findings[0].observed


@OF_TORCH_2_13
def test_reduce_dtype_is_ignored_by_a_group_that_is_frozen_at_first(two_ranks: World) -> None:
    schedule = (*TWO_STEPS[:4], SetRequiresGrad(target="a", value=True), AGAIN, BACKWARD, STEP)
    case = make_case(schedule=schedule, freezes=(Freeze(target="a"),))
    verdict = two_ranks.run(in_precision(Precision(reduce="bfloat16"), case))
    assert verdict.signature == "divergence/fully_shard/gradient"


@OF_TORCH_2_13
def test_gradients_that_begin_in_the_last_microbatch_do_not_meet_accumulated_ones(
    two_ranks: World,
) -> None:
    """Those have ``reduce_dtype`` already, and ``foreach_reduce`` asserts one dtype for all of a
    group.
    """
    model = graph(
        "h = a(x)", "g = b(x)", outputs="h g", returns="tuple", a=Linear(out=4), b=Linear(out=3)
    )
    schedule = (
        NO_SYNC,
        Forward(outputs=(0,)),
        BACKWARD,
        SYNC,
        Forward(outputs=(1,)),
        BACKWARD,
        STEP,
    )
    case = make_case(model, schedule, wrap=groups(ROOT))
    verdict = two_ranks.run(in_precision(BF16, case))
    assert verdict.status is Status.CRASH
    assert "expects uniform gradient dtype" in verdict.findings[0].observed
    assert_passes(two_ranks.run(in_precision(Precision(param="bfloat16"), case)))


@OF_TORCH_2_13
def test_a_list_group_that_runs_in_part_casts_the_output_of_the_root(two_ranks: World) -> None:
    """``_force_complete_incomplete_states`` applies the group's ``output_dtype`` to what the root
    returns.
    """
    model = graph("h = a(x)", "g = c(h)", a=Linear(out=5), b=Linear(out=5), c=Linear(out=3))
    half, half_out = Precision(param="bfloat16"), Precision(param="bfloat16", output="float32")
    rest = (WrapGroup(modules=("c",), precision=half), *groups(ROOT))
    part = WrapGroup(modules=("a", "b"), precision=half_out)
    verdict = two_ranks.run(make_case(model, (FORWARD, BACKWARD), wrap=(part, *rest)))
    assert verdict.signature == "divergence/fully_shard/output"
    whole = replace(part, modules=("a",))
    assert_passes(two_ranks.run(make_case(model, (FORWARD, BACKWARD), wrap=(whole, *rest))))


@pytest.mark.parametrize(
    ("engine", "wrap", "dtype"),
    [
        ("fully_shard", (), "float64"),
        ("simple_fsdp", groups(ROOT), "float64"),
        ("simple_fsdp", (WrapGroup(modules=("",), precision=HALF),), None),
    ],
)
def test_a_hook_on_a_parameter_gets_what_arrives_at_its_copy(
    two_ranks: World, engine: EngineName, wrap: tuple[WrapGroup, ...], dtype: Dtype | None
) -> None:
    """The reference computes with a copy of a parameter whose gradients are wider, or that is
    cast.
    """
    retyped = (SetGradDtype(target="", dtype=dtype),) if dtype else ()
    hooked = RegisterParameterHook(hook="tensor_hook", target="a.weight")
    case = make_case(schedule=(hooked, *retyped, FORWARD, BACKWARD), wrap=wrap, engines=(engine,))
    verdict = two_ranks.run(case)
    assert (verdict.status, verdict.findings, verdict.notes) == (Status.PASS, (), {})
