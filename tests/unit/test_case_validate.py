"""Every refusal says what is wrong and what to do."""

import pickle

import pytest
from cases import ADAPTED, graph, make_case
from msgspec.structs import replace

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Mesh, TensorSpec, Tie, WrapGroup
from fuzzshard.case.graph import Alias, Block, Child
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.ops import (
    Abort,
    Backward,
    Forward,
    RegisterParameterHook,
    RegisterStepHook,
    Reshard,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)
from fuzzshard.parts.options.optimizer import Optimizer

INNER = graph("h0 = a(x)", "h1 = b(h0)", a=Linear(out=4), b=Linear(out=4))
ROOT = graph("h0 = inner(x)", "h1 = head(h0)", inner=INNER, head=Linear(out=2))
VALID = Case(
    seed=0,
    model=ROOT,
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=4),
    schedule=(Forward(), Backward(), Step(), ZeroGrad()),
    wrap=(WrapGroup(modules=("inner",)), WrapGroup(modules=("",))),
)


def groups(*modules, **fields):
    return tuple(WrapGroup(modules=m, **fields) for m in modules)


def off(flag, target="", recurse=True):
    return SetFlag(flag=flag, value=False, target=target, recurse=recurse)


def test_a_valid_case_gives_its_facts():
    assert set(validate(VALID, 4).owners.values()) == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mesh": Mesh(shard=0)}, "the shard axis of the mesh has size 0"),
        ({"mesh": Mesh(shard=4, replicate=2)}, "the mesh needs 8 ranks and the world has 4"),
        ({"inputs": Inputs(batch=0, tensors=VALID.inputs.tensors)}, "batch must be at least 1"),
        (
            {"inputs": Inputs(batch=5000, tensors=VALID.inputs.tensors)},
            "a tensor dimension is 5000",
        ),
        ({"engines": ()}, "names no engine"),
        ({"wrap": groups(())}, "a wrap group has no modules"),
        ({"wrap": groups(("outer",))}, "wrap names 'outer', which is not a module"),
        ({"wrap": groups(("head",), ("head",))}, "'head' is wrapped twice"),
        (
            {"wrap": groups(("",), ("head",))},
            "'head' is wrapped after its ancestor ''; wrap bottom-up",
        ),
        ({"wrap": groups(("inner", "inner.a"))}, "are nested"),
        (
            {"wrap": groups(("",), reshard_after_forward=3)},
            "reshard_after_forward=3 does not divide the shard axis of size 4; use a divisor",
        ),
        ({"checkpoints": (Checkpoint(module="outer"),)}, "checkpoint names 'outer'"),
        ({"checkpoints": (Checkpoint(module="head"),) * 2}, "no module or named twice"),
        ({"checkpoints": (Checkpoint(module="", implementation="wrapper"),)}, "cannot replace ''"),
        (
            {"checkpoints": (Checkpoint(module="", implementation="utils"),), "engines": ("ddp",)},
            "DDP, FSDP1 or compile() are within its checkpoint",
        ),
        (
            {"freezes": (Freeze(target="inner.c"),)},
            "freeze names 'inner.c', which has no parameters",
        ),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(change, message):
    with pytest.raises(InvalidCase) as error:
        validate(replace(VALID, **change), 4)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ((), "the schedule has no forward"),
        ((Backward(),), "a backward has no pending forward"),
        ((Forward(grad=False), Backward()), "a backward has no pending forward"),
        ((Forward(), Backward(), Backward()), "a backward has no pending forward"),
        ((Forward(), Forward(), Backward(outputs=(0,))), "is not of the last forward alone"),
        (
            (Forward(), Forward(grad=False), Backward(outputs=(0,))),
            "is not of the last forward alone",
        ),
        (
            (Forward(), Backward(outputs=(1,))),
            "a backward is of outputs (1,), and its forward uses (0,)",
        ),
        ((Forward(target="outer"),), "forward names 'outer'"),
        ((Forward(outputs=(1,)),), "forward uses outputs (1,) of 1"),
        (
            (Forward(target="inner.a"),),
            "uses 'inner.a.weight' in 'inner.a', outside the group that manages it; wrap "
            "'inner.a' itself",
        ),
        (
            (SetRequiresGrad(target="outer", value=True), Forward()),
            "set_requires_grad names 'outer'",
        ),
        (
            (off("requires_gradient_sync", "head", recurse=False), Forward()),
            "'head', which is not wrapped",
        ),
        (
            (off("is_last_backward"), Forward(), Backward(), Step()),
            "step follows a backward with is_last_backward=False",
        ),
        (
            (off("is_last_backward"), Forward(), Backward(), ZeroGrad(set_to_none=False)),
            "zero_grad follows a backward with is_last_backward=False",
        ),
        (
            (off("reshard_after_backward"), Forward(), Backward(), Step()),
            "step is for sharded parameters, and some may be unsharded; reshard before it",
        ),
    ],
)
def test_a_schedule_that_cannot_run_is_refused(schedule, message):
    with pytest.raises(InvalidCase) as error:
        validate(replace(VALID, schedule=schedule), 4)
    assert message in str(error.value)


def test_a_backward_ends_the_reductions_of_the_roots_that_it_goes_through():
    """Of an output that another root has made: nobody waits for the one that it leaves out."""
    model = graph("h0 = a(x)", "h1 = b(h0)", a=Linear(out=4), b=Linear(out=4))
    model = replace(model, outputs=("h0", "h1"), returns="tuple")
    flags = [SetFlag(flag="is_last_backward", value=value) for value in (False, True)]

    def last(outputs):
        schedule = (flags[0], Forward(), Backward(), flags[1])
        return replace(
            VALID,
            model=model,
            wrap=groups(("a",), ("b",)),
            schedule=(*schedule, Forward(outputs=outputs), Backward(), Reshard(), Step()),
        )

    assert validate(last((1,)), 4)
    with pytest.raises(InvalidCase, match="step follows a backward with is_last_backward=False"):
        validate(last((0,)), 4)
    assert validate(replace(last((0,)), freezes=(Freeze(target="b"),)), 4)  # reduces nothing


def test_a_scaler_steps_where_some_backward_has_reduced_a_gradient_over_all_ranks():
    """A backward of outputs without gradients reduces nothing that was left before it."""
    flags = [SetFlag(flag="requires_all_reduce", value=value) for value in (False, True)]
    partly = (flags[0], Forward(), Backward(), flags[1])
    ends = (Forward(outputs=(1,)), Backward(), Step())
    case = replace(
        VALID,
        model=replace(ROOT, outputs=("h1", "x"), returns="tuple"),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=4, requires_grad=True),)),
        mesh=Mesh(replicate=2, shard=2),
        schedule=(*partly, *ends),
        optimizer=Optimizer(grad_scaler="finite"),
    )
    with pytest.raises(InvalidCase, match="a step of a GradScaler may have no gradients"):
        validate(case, 4)
    validate(replace(case, schedule=(*partly, Forward(), Backward(), *ends)), 4)


def test_a_fused_step_that_a_scaler_may_skip_has_no_hooks():
    """It is called all the same, and its kernel does nothing."""
    hook = RegisterStepHook(hook="step_post_hook")
    schedule = (hook, Forward(), Backward(), Step())
    fused = Optimizer(grad_scaler="infinite", flags=("fused",))
    with pytest.raises(InvalidCase, match="hooks of a fused step run where a GradScaler skips"):
        validate(replace(VALID, schedule=schedule, optimizer=fused), 4)
    for optimizer in (replace(fused, flags=()), replace(fused, grad_scaler=None)):
        validate(replace(VALID, schedule=schedule, optimizer=optimizer), 4)


def test_a_scaler_steps_where_a_forward_was_of_parameters_that_require_a_gradient():
    """A parameter that is thawed between a forward and its backward gets none."""
    thawed = SetRequiresGrad(target="head", value=True)
    case = replace(
        VALID,
        freezes=(Freeze(target="inner"), Freeze(target="head")),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=4, requires_grad=True),)),
        optimizer=Optimizer(grad_scaler="finite"),
    )
    with pytest.raises(InvalidCase, match="a step of a GradScaler may have no gradients"):
        validate(replace(case, schedule=(Forward(), Reshard(), thawed, Backward(), Step())), 4)
    validate(replace(case, schedule=(thawed, Forward(), Backward(), Step())), 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "schedule": (Forward(), Backward(), Step(), Forward(outputs=(1,)), Backward()),
                **{"optimizer": Optimizer(grad_scaler="finite"), "engines": ("ddp",), "wrap": ()},
            },
            "forward uses outputs",
        ),
        *(
            (
                {
                    "checkpoints": (Checkpoint(module="head"),),
                    "schedule": (Forward(), Reshard(), op, Backward()),
                },
                "between a checkpointed forward and its backward",
            )
            for op in (SetMode(train=False), SetRequiresGrad(target="head", value=False))
        ),
        (
            {
                **{"model": graph("h0 = norm(x)", norm=BatchNorm()), "wrap": ()},
                "inputs": Inputs(batch=1, tensors=VALID.inputs.tensors),
            },
            "a norm needs two values",
        ),
        (
            {
                "model": replace(
                    ROOT,
                    children=(*ROOT.children, Child(name="again", module=Alias(target="head"))),
                ),
                "checkpoints": (Checkpoint(module="head", implementation="wrapper"),),
            },
            "the checkpoint wrapper cannot replace 'head'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(InvalidCase, match=message):
        validate(replace(VALID, **changes), 4)


STEPPING = RegisterParameterHook(hook="step_in_backward", target="head.weight")


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ((STEPPING, Forward(), Forward(), Backward(which="oldest")), "another one needs"),
        ((STEPPING, Forward(), Backward(retain_graph=True)), "another one needs"),
        ((STEPPING, off("reshard_after_backward"), Forward(), Backward()), "them unsharded"),
        (
            (STEPPING, Abort(target="head", during="backward")),
            "an aborted backward cannot be combined",
        ),
    ],
)
def test_a_step_within_a_backward_is_for_what_nothing_needs_any_more(schedule, problem):
    case = replace(VALID, schedule=(*schedule, Forward(), Backward()))
    with pytest.raises(InvalidCase, match=problem):
        validate(case, 4)


def test_a_scaler_and_steps_within_backwards_exclude_each_other():
    case = replace(VALID, schedule=(STEPPING, *VALID.schedule))
    assert validate(case, 4)
    with pytest.raises(InvalidCase, match="a GradScaler"):
        validate(replace(case, optimizer=Optimizer(grad_scaler="finite")), 4)


@pytest.mark.parametrize(
    ("added", "more", "problem"),
    [
        (("a.down", "a.up.weight"), {}, "is no module"),
        (("a.down",), {}, "something else is registered after it"),
        (("a.up", "a.down"), {}, "something else is registered after it"),
        (("b", "a.up"), {"wrap": groups(("b",), ("",))}, "some of it is wrapped"),
        (("a.up",), {"init": "meta"}, "on the meta device"),
    ],
)
def test_what_is_added_to_a_wrapped_model_is_whole_and_comes_last(added, more, problem):
    case = replace(
        make_case(ADAPTED, wrap=groups(("",))), ignored=added, ignored_by="adding", **more
    )
    with pytest.raises(InvalidCase, match=problem):
        validate(case, 2)
    assert validate(
        replace(case, ignored=("a.down", "a.up"), wrap=groups(("",)), init="device"), 2
    )


def test_nothing_says_whether_a_hook_runs_on_what_a_frozen_parameter_does_not_accumulate():
    freeze = SetRequiresGrad(target="head", value=False)
    hook = RegisterParameterHook(hook="post_accumulate_grad_hook", target="head.weight", scale=0.5)
    late = (hook, Forward(), Reshard(), freeze, Backward())
    with pytest.raises(InvalidCase, match="'head' is frozen before a backward that would call"):
        validate(replace(VALID, schedule=late), 4)
    validate(replace(VALID, schedule=(hook, Forward(), Backward(), freeze, Forward())), 4)
    of_gradient = replace(hook, hook="tensor_hook")
    validate(replace(VALID, schedule=(of_gradient, *late[1:])), 4)


def test_where_engines_train_something_else_only_losses_are_comparable():
    frozen = replace(VALID, freezes=(Freeze(target="inner"),))
    thaw = SetRequiresGrad(target="inner.a", value=True, engines_only=True)
    case = replace(frozen, schedule=(thaw, *VALID.schedule))
    with pytest.raises(InvalidCase, match="do not train the same parameters at 'inner"):
        validate(case, 4)
    assert validate(replace(case, observe="losses"), 4)
    assert validate(replace(case, freezes=()), 4)


def test_a_model_without_parameters_can_be_run_forward():
    root = Block(children=(), nodes=(), outputs=("x",))
    validate(
        replace(VALID, model=root, wrap=(), schedule=(Forward(),), freezes=(), checkpoints=()), 4
    )


def test_flags_restored_before_the_last_backward_may_be_followed_by_a_step():
    on = SetFlag(flag="is_last_backward", value=True)
    schedule = (off("is_last_backward"), Forward(), Backward(), on, Forward(), Backward(), Step())
    validate(replace(VALID, schedule=schedule), 4)


def test_without_a_world_any_mesh_is_valid():
    validate(replace(VALID, mesh=Mesh(shard=64)))


def test_a_refusal_survives_pickling():
    with pytest.raises(InvalidCase) as error:
        validate(replace(VALID, engines=()))
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize("which", [0, 1])
def test_a_tied_parameter_is_sharded_evenly_by_every_group_that_comes_upon_it(which):
    wrap = [WrapGroup(modules=("b",)), WrapGroup(modules=("",))]
    wrap[which] = replace(wrap[which], shard_dim="last")
    tied = replace(
        VALID,
        model=INNER,
        mesh=Mesh(shard=3),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
        wrap=tuple(wrap),
    )
    with pytest.raises(InvalidCase, match="cannot be sharded evenly over 3 ranks on dim 1"):
        validate(tied, 3)
