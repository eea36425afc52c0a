"""SimpleFSDP: what it trains, and what it is not run with."""

from __future__ import annotations

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    STEP,
    TWO_STEPS,
    chain,
    colwise,
    float_inputs,
    make_case,
)
from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Mesh, Optimizer, Tie, WrapGroup
from fuzzshard.case.options import Precision
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.lstm import LSTM
from fuzzshard.parts.leaves.weight_norm import WeightNorm
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINE = "simple_fsdp"
ADAM = Optimizer(kind="adam", weight_decay=0.125)
HALF = Precision(param="bfloat16", reduce="float32")
PASSES = {
    "shards of uneven sizes": make_case(schedule=TWO_STEPS, optimizer=ADAM, engines=(ENGINE,)),
    "replicas": make_case(
        schedule=TWO_STEPS, optimizer=ADAM, engines=(ENGINE,), mesh=Mesh(replicate=2, shard=1)
    ),
    "two backwards before a step": make_case(
        schedule=(FORWARD, BACKWARD, AGAIN, BACKWARD, STEP), engines=(ENGINE,)
    ),
    "a parametrized module, a tie, what is frozen and hooked by name": make_case(
        chain(a=Linear(out=5), b=Linear(out=5), c=WeightNorm(out=3)),
        (
            ops.RegisterParameterHook(hook="tensor_hook", target="a.weight"),
            ops.SetRequiresGrad(target="c.bias", value=True),
            *TWO_STEPS,
        ),
        optimizer=ADAM,
        engines=(ENGINE,),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
        freezes=(Freeze(target="c.bias", after_wrap=True), Freeze(target="b.bias")),
    ),
    "a backward through a backward": make_case(
        chain(a=Linear(out=5), b=Attention()),
        inputs=float_inputs(seq=2),
        loss="gradient_penalty",
        engines=(ENGINE,),
    ),
    "mixed precision of a model that is called with a dataclass": make_case(
        replace(chain(a=Linear(out=4)), passing="dataclass"),
        wrap=(WrapGroup(modules=("",), precision=HALF),),
        engines=(ENGINE,),
    ),
    "mixed precision of the whole model": make_case(
        wrap=tuple(WrapGroup(modules=(path,), precision=HALF) for path in ("a", "")),
        schedule=TWO_STEPS,
        optimizer=ADAM,
        engines=(ENGINE,),
    ),
    "mixed precision that names no dtype": make_case(
        wrap=(WrapGroup(modules=("",), precision=Precision()),), engines=(ENGINE,)
    ),
    "a checkpoint": make_case(
        schedule=(*TWO_STEPS, ops.SaveState(), ops.CorruptState(), ops.LoadState(), *TWO_STEPS),
        optimizer=ADAM,
        engines=(ENGINE,),
    ),
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES.keys())
def test_it_trains_to_what_plain_training_does(two_ranks: World, case: Case) -> None:
    verdict = two_ranks.run(case)
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert ENGINE not in verdict.notes


EXCLUDED: dict[str, tuple[Case, str]] = {
    "no_sync": (
        make_case(
            schedule=(ops.SetFlag(flag="requires_gradient_sync", value=False), FORWARD, BACKWARD)
        ),
        "does not synchronise",
    ),
    "a divide factor": (
        make_case(schedule=(ops.SetDivideFactor(factor=4.0), *TWO_STEPS)),
        "a divide factor",
    ),
    "a policy without a dtype of gradients": (
        make_case(wrap=(WrapGroup(modules=("",), precision=Precision(param="bfloat16")),)),
        "mixed precision",
    ),
    "policies of some groups": (
        make_case(wrap=(WrapGroup(modules=("a",), precision=HALF), WrapGroup(modules=("",)))),
        "mixed precision",
    ),
    "a policy of outputs": (
        make_case(
            wrap=(WrapGroup(modules=("",), precision=replace(HALF, output="float32")),),
        ),
        "mixed precision",
    ),
    "an LSTM": (
        make_case(chain(a=LSTM(out=4)), inputs=float_inputs(4, seq=2)),
        "a list of its own",
    ),
    "DTensors": (
        make_case(mesh=Mesh(shard=2, tensor=2), tensor_parallel=(colwise("a"),)),
        "tensor parallel already",
    ),
    "a hook on a parameter that is cast later": (
        make_case(
            schedule=(
                ops.RegisterParameterHook(hook="post_accumulate_grad_hook", target="a.weight"),
                ops.Cast(dtype="float64"),
                *TWO_STEPS,
            )
        ),
        "a hook on a parameter that is cast",
    ),
}


@pytest.mark.parametrize(("case", "why"), EXCLUDED.values(), ids=EXCLUDED.keys())
def test_what_its_source_does_not_have_is_excluded(case: Case, why: str) -> None:
    excluded = not_applicable(case, ENGINE)
    assert excluded is not None
    assert why in excluded.reason
    assert not_applicable(case, "fully_shard") is None
