"""What is right passes with all mends on."""

from __future__ import annotations

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    ZERO,
    graph,
    groups,
    make_case,
)

from fuzzshard.case.case import Checkpoint, Freeze, Mesh, Optimizer, WrapGroup
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


def test_a_list_group_reduces_once_in_a_backward_without_all_reduce(two_ranks: World) -> None:
    off, on = (SetFlag(flag="requires_all_reduce", value=value) for value in (False, True))
    case = make_case(
        schedule=(off, FORWARD, BACKWARD, on, AGAIN, BACKWARD, STEP),
        mesh=Mesh(replicate=1, shard=2),
        wrap=groups(("a", "b"), ROOT),
    )
    for mends in ((), mends_for()):
        verdict = two_ranks.run(case, mends=mends)
        assert verdict.status is Status.PASS, verdict.findings


def test_a_recomputation_casts_the_outputs_of_a_module_whose_backward_has_begun(
    two_ranks: World,
) -> None:
    model = graph("h0 = a(x)", "h1 = act(h0)", "h2 = a(h1)", a=Linear(out=5), act=Activation())
    wrap = (WrapGroup(modules=("a",), precision=Precision(param="float16", output="float32")),)
    case = make_case(model, (FORWARD, BACKWARD), wrap=wrap, checkpoints=(Checkpoint(module=""),))
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings


def test_a_compiled_model_trains_a_parameter_that_is_thawed(two_ranks: World) -> None:
    freeze, thaw = (SetRequiresGrad(target="a", value=value) for value in (False, True))
    case = make_case(
        schedule=(freeze, FORWARD, BACKWARD, STEP, ZERO, thaw, AGAIN, BACKWARD, STEP),
        wrap=groups("b", ROOT),
        ignored=("a",),
        compile="aot_eager",
    )
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings


def test_a_compiled_dropout_in_eval_mode_passes_gradients_under_no_grad(two_ranks: World) -> None:
    model = graph(
        "h = a(x)", "k = d(h) without grad", "s = add(h, k)", a=Linear(out=5), d=Dropout()
    )
    schedule = (SetMode(train=False), FORWARD, BACKWARD)
    case = make_case(model, schedule, wrap=groups(ROOT), compile="aot_eager")
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings


def test_a_nested_module_of_a_list_group_does_not_end_the_forward_of_its_parent(
    two_ranks: World,
) -> None:
    inner = graph("h = shared(x)", "k = down(h)", shared=Alias(target="a"), down=Linear(out=5))
    model = graph("h = a(x)", "k = b(h)", a=Linear(out=5), b=inner)
    case = make_case(
        model, (FORWARD, Forward(target="b"), BACKWARD, STEP), wrap=groups(("a", "b"), ROOT)
    )
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings


def test_a_static_graph_does_not_wait_for_gradients_of_unused_outputs(two_ranks: World) -> None:
    model = graph(
        "h0 = a(x)",
        "h1 = b(x)",
        outputs="h0 h1",
        returns="tuple",
        a=Linear(out=2),
        b=Linear(out=2),
    )
    one = Forward(outputs=(0,))
    case = make_case(
        model,
        (one, BACKWARD, STEP, ZERO) * 3,
        engines=("ddp",),
        ddp=DDP(static_graph=True),
    )
    assert two_ranks.run(case).status is not Status.PASS
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings


def test_the_frozen_parameters_of_a_unit_are_read_after_the_others_have_their_gradients(
    two_ranks: World,
) -> None:
    model = graph(
        "h0 = a(x)",
        "h1 = frozen(h0)",
        "h2 = b(x)",
        outputs="h1 h2",
        returns="tuple",
        a=Linear(out=2),
        frozen=Linear(out=2),
        b=Linear(out=2),
    )
    case = make_case(
        model,
        (Forward(outputs=(0,)), FORWARD, BACKWARD),
        wrap=groups("a"),
        freezes=(Freeze(target="frozen"),),
        engines=("fsdp1",),
        fsdp1=FSDP1(use_orig_params=True),
    )
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings


def test_an_optimizer_that_is_loaded_runs_no_hook_of_the_user(two_ranks: World) -> None:
    thaw, freeze = (SetRequiresGrad(target="a", value=value) for value in (True, False))
    case = make_case(
        schedule=(
            *(RegisterStepHook(hook="step_post_hook"), freeze, FORWARD, BACKWARD),
            *(Reshard(), STEP, thaw, SaveState(via="dcp"), LoadState(), ZERO, AGAIN, BACKWARD),
            *(Reshard(), STEP),
        ),
        optimizer=Optimizer(kind="adamax"),
    )
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings
