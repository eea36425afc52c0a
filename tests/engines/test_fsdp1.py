"""FSDP1 trains as the plain module does; what its documentation excludes is not judged, with the
reason.
"""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    chain,
    float_inputs,
    graph,
    groups,
    make_case,
)

from fuzzshard.case.case import Case, Checkpoint, Freeze, Mesh, Optimizer, ParameterDtype, Tie
from fuzzshard.case.graph import Alias, Block
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import (
    Backward,
    Cast,
    ClipGradNorm,
    ClipGradValue,
    Forward,
    SetDivideFactor,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    TakeStateDict,
)
from fuzzshard.verdict import Status
from fuzzshard.world import World

NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
TAKING = (BACKWARD, STEP, TakeStateDict(options=("full_state_dict", "cpu_offload")))
ACCUMULATING = (
    FORWARD,
    BACKWARD,
    NO_SYNC,
    AGAIN,
    BACKWARD,
    FORWARD,
    BACKWARD,
    SYNC,
    AGAIN,
    BACKWARD,
    STEP,
)
FROZEN = (Freeze(target="a"),)
HALF_FROZEN = (Freeze(target="a.weight"),)
EQUAL = chain(a=Linear(out=5), r=Activation(), b=Linear(out=5))
TIE = (Tie(parameter="b.weight", source="a.weight"),)
TWO_BLOCKS = chain(
    p=chain(a=Linear(out=5), r=Activation()), q=chain(b=Linear(out=5), r=Activation())
)
METHOD = graph("h = a(x)", method="go", a=Linear(out=5))
UNUSED = graph("h = a(x)", a=Linear(out=5), unused=Linear(out=5))
EVERY_STRATEGY = ("full_shard", "shard_grad_op", "no_shard")


def fsdp1(
    model: Block | None = None,
    schedule: Any = TWO_STEPS,
    *,
    options: FSDP1 | None = None,
    **rest: Any,
) -> Case:
    """A case for FSDP1 alone."""
    return make_case(model, schedule, engines=("fsdp1",), fsdp1=options or FSDP1(), **rest)


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
@pytest.mark.parametrize("use_orig_params", [False, True])
@pytest.mark.parametrize("wrapping", ["manual", "policy"])
def test_two_ranks_train_bitwise_as_the_reference(
    two_ranks: World, strategy: Any, use_orig_params: bool, wrapping: Any
) -> None:
    options = FSDP1(strategy=strategy, use_orig_params=use_orig_params, wrapping=wrapping)
    verdict = two_ranks.run(fsdp1(options=options))
    assert (verdict.status, verdict.comparison, verdict.notes) == (Status.PASS, "bitwise", {})


ORIGINALS = FSDP1(use_orig_params=True)

HELD = {
    "uneven shards on three ranks": fsdp1(mesh=3),
    "more ranks than elements": fsdp1(
        chain(a=Linear(out=1, bias=False)), mesh=4, inputs=float_inputs(3)
    ),
    "a single rank": fsdp1(mesh=1),
    "hybrid sharding of gradients": fsdp1(
        mesh=Mesh(replicate=2, shard=2),
        options=FSDP1(strategy="hybrid_shard_zero2", use_orig_params=True),
    ),
    "prefetching both ways": fsdp1(
        options=FSDP1(forward_prefetch=True, backward_prefetch="post", limit_all_gathers=False)
    ),
    "no prefetching": fsdp1(options=FSDP1(backward_prefetch=None)),
    "no_sync with flat parameters": fsdp1(schedule=ACCUMULATING),
    "no_sync with original parameters": fsdp1(schedule=ACCUMULATING, options=ORIGINALS),
    "no_sync without sharding": fsdp1(schedule=ACCUMULATING, options=FSDP1(strategy="no_shard")),
    "a unit frozen after wrapping": fsdp1(freezes=(Freeze(target="a", after_wrap=True),)),
    "a half frozen unit with original parameters": fsdp1(freezes=HALF_FROZEN, options=ORIGINALS),
    "a tie within a unit": fsdp1(EQUAL, ties=TIE, wrap=groups(ROOT)),
    "a unit that is registered twice": fsdp1(
        chain(a=Linear(out=5), r=Activation(), c=Alias(target="a")), wrap=groups("a", ROOT)
    ),
    "a nested unit, and a policy by class": fsdp1(
        TWO_BLOCKS, wrap=groups("p", "q", ROOT), options=FSDP1(wrapping="policy")
    ),
    "a policy that picks one module of a class": fsdp1(
        TWO_BLOCKS, wrap=groups("p.a", ROOT), options=FSDP1(wrapping="policy")
    ),
    "a checkpointed unit": fsdp1(checkpoints=(Checkpoint(module="a", implementation="wrapper"),)),
    "a part of a unit below a checkpoint wrapper that is unfrozen": fsdp1(
        schedule=(SetRequiresGrad(target="a.weight", value=True), *TWO_STEPS),
        freezes=FROZEN,
        checkpoints=(Checkpoint(module="a", implementation="wrapper"),),
        options=ORIGINALS,
    ),
    "original parameters after a forward in inference mode": fsdp1(
        schedule=(Forward(grad=False, inference=True), SetMode(train=False)),
        wrap=(),
        options=ORIGINALS,
    ),
    "clipped gradients": fsdp1(schedule=(FORWARD, BACKWARD, ClipGradNorm(max_norm=0.01), STEP)),
    "a root that the case does not wrap": fsdp1(wrap=groups("a")),
    "values of a checkpointed unit on the meta device": fsdp1(
        checkpoints=(Checkpoint(module="a", implementation="wrapper"),),
        options=FSDP1(initial="meta"),
    ),
    **{
        f"the hook {name}, {strategy}": fsdp1(
            schedule=ACCUMULATING, options=FSDP1(hook=name, strategy=strategy)
        )
        for name in ("torch", "average")
        for strategy in ("full_shard", "shard_grad_op", "no_shard")
    },
    "full parameters of what is not sharded": fsdp1(
        options=FSDP1(summon="discarded", strategy="no_shard")
    ),
    "a state dict of flat parameters": fsdp1(schedule=(TakeStateDict(), FORWARD, *TAKING)),
    "a state dict of original parameters": fsdp1(schedule=(FORWARD, *TAKING), options=ORIGINALS),
    "debug level DETAIL": fsdp1(options=FSDP1(debug="detail")),
}


@pytest.mark.parametrize("case", HELD.values(), ids=HELD.keys())
def test_it_holds(four_ranks: World, case: Case) -> None:
    verdict = four_ranks.run(case)
    assert (verdict.status, verdict.notes) == (Status.PASS, {}), verdict.findings[:2]


REFUSED = {
    "a half frozen unit": (
        fsdp1(freezes=HALF_FROZEN),
        "Must flatten tensors with uniform `requires_grad`",
    ),
    "a half frozen unit under a policy": (
        fsdp1(freezes=HALF_FROZEN, options=FSDP1(wrapping="policy")),
        "both parameters with requires_grad=True and False",
    ),
    "two dtypes in one unit": (
        fsdp1(
            chain(a=Linear(out=5), s=RawParameter()),
            dtypes=(ParameterDtype(target="s", dtype="float64"),),
            freezes=(Freeze(target="s"),),
            wrap=groups(ROOT),
            options=ORIGINALS,
        ),
        "Must flatten tensors with uniform dtype",
    ),
}


@pytest.mark.parametrize(("case", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_fsdp1_refuses(four_ranks: World, case: Case, text: str) -> None:
    verdict = four_ranks.run(case)
    assert verdict.status is Status.REJECTED, verdict.findings[:2]
    assert text in verdict.notes["fsdp1"]


EXCLUDED = {
    "a list group": (fsdp1(wrap=groups(("a", "b"), ROOT)), "a list group"),
    "a tie across units": (fsdp1(EQUAL, ties=TIE), "is shared across units"),
    "a unit that is registered twice under a policy": (
        fsdp1(
            chain(a=Linear(out=5), c=Alias(target="a")),
            wrap=groups("a", ROOT),
            options=FSDP1(wrapping="policy"),
        ),
        "replaces a module where it is registered first",
    ),
    "a unit that is called by another method": (
        fsdp1(chain(m=METHOD), wrap=groups("m", ROOT)),
        "called by another method",
    ),
    "a forward of a submodule": (
        fsdp1(schedule=(Forward(target="a"), BACKWARD), wrap=groups("a", "b")),
        "a forward of a submodule",
    ),
    "a flag for one module": (
        fsdp1(schedule=(SetFlag(flag="requires_gradient_sync", value=False, target="a"), FORWARD)),
        "a flag for some modules only",
    ),
    "a sync switched before the backward": (
        fsdp1(schedule=(FORWARD, NO_SYNC, BACKWARD)),
        "between a forward and its backward",
    ),
    "a step without a sync": (
        fsdp1(schedule=(NO_SYNC, FORWARD, BACKWARD, STEP)),
        "not synchronised",
    ),
    "clipped without a sync": (
        fsdp1(schedule=(NO_SYNC, FORWARD, BACKWARD, ClipGradValue(clip_value=0.5))),
        "not synchronised",
    ),
    "a step after a forward": (
        fsdp1(schedule=(FORWARD, BACKWARD, AGAIN, STEP)),
        "parameters change between forward and backward",
    ),
    "forwards whose backwards come one by one": (
        fsdp1(schedule=(FORWARD, AGAIN, Backward(which="oldest"), Backward(which="oldest"))),
        "another backward came after",
    ),
    "requires_grad of a part of a unit": (
        fsdp1(schedule=(SetRequiresGrad(target="a.bias", value=False), FORWARD)),
        "a part of a flat parameter",
    ),
    "a divide factor": (fsdp1(schedule=(SetDivideFactor(factor=3.0), FORWARD)), "a divide factor"),
    "a cast": (fsdp1(schedule=(Cast(dtype="float64"), FORWARD)), "parameters are cast"),
    "a model on the meta device": (fsdp1(init="meta"), "meta device"),
    "a hook of a hybrid strategy": (
        fsdp1(
            mesh=Mesh(replicate=2, shard=2), options=FSDP1(strategy="hybrid_shard", hook="torch")
        ),
        "a communication hook of a hybrid strategy",
    ),
    "a mesh of two axes": (
        fsdp1(mesh=Mesh(replicate=2, shard=2), options=FSDP1(device_mesh=True)),
        "a mesh of two axes",
    ),
    "gradients of flat parameters": (
        fsdp1(options=FSDP1(summon="gradients")),
        "of flat parameters",
    ),
    "a tie on the meta device": (
        fsdp1(EQUAL, ties=TIE, wrap=groups(ROOT), options=FSDP1(initial="meta")),
        "a tie on the meta device",
    ),
    "mixed precision of what only fully_shard ignores": (
        fsdp1(
            chain(a=RawParameter()),
            options=FSDP1(precision=Precision(param="bfloat16")),
            wrap=groups(ROOT),
            ignored=("a.weight",),
        ),
        "or ignored parameters",
    ),
    "momentum on zeros in a flat gradient": (
        fsdp1(UNUSED, wrap=groups(ROOT), optimizer=Optimizer(momentum=0.5)),
        "zeros in a flat gradient",
    ),
}


@pytest.mark.parametrize(("case", "reason"), EXCLUDED.values(), ids=EXCLUDED.keys())
def test_it_is_not_judged(four_ranks: World, case: Case, reason: str) -> None:
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, verdict.findings[:2]
    assert verdict.notes["fsdp1"].startswith("not applicable: ")
    assert reason in verdict.notes["fsdp1"]
