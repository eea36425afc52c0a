"""What is right passes with all mends on."""

from __future__ import annotations

import pytest
from cases import AGAIN, BACKWARD, FORWARD, ROOT, STEP, ZERO, graph, groups, make_case

from fuzzshard.case.case import Case, Checkpoint, Freeze, Mesh, Optimizer, WrapGroup
from fuzzshard.case.graph import Alias
from fuzzshard.case.options import DDP, FSDP1, Precision
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import (
    Forward,
    LoadState,
    RegisterStepHook,
    Reshard,
    SaveState,
    SetFlag,
    SetMode,
    SetRequiresGrad,
)
from fuzzshard.verdict import Status
from fuzzshard.world import World

pytestmark = pytest.mark.slow


ALL_REDUCE_OFF, ALL_REDUCE_ON = (
    SetFlag(flag="requires_all_reduce", value=value) for value in (False, True)
)
FREEZE, THAW = (SetRequiresGrad(target="a", value=value) for value in (False, True))
IN_HALF = Precision(param="float16", output="float32")
NESTED = graph("h = shared(x)", "k = down(h)", shared=Alias(target="a"), down=Linear(out=5))
TWO_OUTPUTS = graph(
    "h0 = a(x)", "h1 = b(x)", outputs="h0 h1", returns="tuple", a=Linear(out=2), b=Linear(out=2)
)
HALF_FROZEN = graph(
    *("h0 = a(x)", "h1 = frozen(h0)", "h2 = b(x)"),
    outputs="h1 h2",
    returns="tuple",
    a=Linear(out=2),
    frozen=Linear(out=2),
    b=Linear(out=2),
)
REDUCED_ONCE = make_case(
    schedule=(ALL_REDUCE_OFF, FORWARD, BACKWARD, ALL_REDUCE_ON, AGAIN, BACKWARD, STEP),
    mesh=Mesh(replicate=1, shard=2),
    wrap=groups(("a", "b"), ROOT),
)
STATIC = make_case(
    TWO_OUTPUTS,
    (Forward(outputs=(0,)), BACKWARD, STEP, ZERO) * 3,
    engines=("ddp",),
    ddp=DDP(static_graph=True),
)
RIGHT = {
    "a list group reduces once in a backward without all-reduce": REDUCED_ONCE,
    "a static graph does not wait for gradients of unused outputs": STATIC,
    "a recomputation casts the outputs of a module whose backward has begun": make_case(
        graph("h0 = a(x)", "h1 = act(h0)", "h2 = a(h1)", a=Linear(out=5), act=Activation()),
        (FORWARD, BACKWARD),
        wrap=(WrapGroup(modules=("a",), precision=IN_HALF),),
        checkpoints=(Checkpoint(module=""),),
    ),
    "a compiled model trains a parameter that is thawed": make_case(
        schedule=(FREEZE, FORWARD, BACKWARD, STEP, ZERO, THAW, AGAIN, BACKWARD, STEP),
        wrap=groups("b", ROOT),
        ignored=("a",),
        compile="aot_eager",
    ),
    "a compiled dropout in eval mode passes gradients under no_grad": make_case(
        graph("h = a(x)", "k = d(h) without grad", "s = add(h, k)", a=Linear(out=5), d=Dropout()),
        (SetMode(train=False), FORWARD, BACKWARD),
        wrap=groups(ROOT),
        compile="aot_eager",
    ),
    "a nested module of a list group does not end the forward of its parent": make_case(
        graph("h = a(x)", "k = b(h)", a=Linear(out=5), b=NESTED),
        (FORWARD, Forward(target="b"), BACKWARD, STEP),
        wrap=groups(("a", "b"), ROOT),
    ),
    "the frozen parameters of a unit are read after the others have their gradients": make_case(
        HALF_FROZEN,
        (Forward(outputs=(0,)), FORWARD, BACKWARD),
        wrap=groups("a"),
        freezes=(Freeze(target="frozen"),),
        engines=("fsdp1",),
        fsdp1=FSDP1(use_orig_params=True),
    ),
    "an optimizer that is loaded runs no hook of the user": make_case(
        schedule=(
            *(RegisterStepHook(hook="step_post_hook"), FREEZE, FORWARD, BACKWARD),
            *(Reshard(), STEP, THAW, SaveState(via="dcp"), LoadState(), ZERO, AGAIN, BACKWARD),
            *(Reshard(), STEP),
        ),
        optimizer=Optimizer(kind="adamax"),
    ),
}


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT.keys())
def test_with_all_mends(two_ranks: World, case: Case) -> None:
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings


def test_what_stock_torch_does_without_mends(two_ranks: World) -> None:
    assert two_ranks.run(REDUCED_ONCE).status is Status.PASS
    assert two_ranks.run(STATIC).status is not Status.PASS
