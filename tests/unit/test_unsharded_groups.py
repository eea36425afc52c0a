"""Before which ops the documentation asks for a reshard."""

from __future__ import annotations

import pytest
from cases import AGAIN, BACKWARD, FORWARD, ROOT, STEP, chain, graph, groups, make_case
from msgspec.structs import replace

from fuzzshard.analysis.schedule_state import follow
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Expect, Freeze, Inputs, TensorSpec, WrapGroup
from fuzzshard.errors import InvalidCase
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.shrink.repair import repaired

PARTLY_USED = graph(
    "h = a(x)", "z = b(h)", outputs="h z", returns="tuple", a=Linear(out=5), b=Linear(out=3)
)
WITHOUT_GRADIENTS = ops.Forward(batch=1, grad=False)
FREEZE = ops.SetRequiresGrad(target="a", value=False)


def stepping(
    *schedule: Op, wrap: tuple[WrapGroup, ...] = groups("a", "b"), **options: object
) -> Case:
    return make_case(PARTLY_USED, schedule=(*schedule, STEP), wrap=wrap, **options)


def lacks(*schedule: Op, **options: object) -> bool:
    """Whether a step after ``schedule`` lacks a reshard."""
    return bool(lacking(stepping(*schedule, **options)))


def lacking(case: Case) -> list[int]:
    return [at.index for at in follow(case) if at.lacks_reshard]


def test_a_backward_through_all_groups_reshards_them_without_a_wrapped_root() -> None:
    assert not lacks(FORWARD, BACKWARD)
    assert not lacks(FORWARD, AGAIN, BACKWARD)


def test_a_group_that_the_loss_does_not_depend_on_may_stay_unsharded() -> None:
    first = ops.Forward(outputs=(0,))
    assert lacks(first, BACKWARD)
    assert not lacks(first, BACKWARD, wrap=groups("a"))
    assert not lacks(first, BACKWARD, wrap=groups("a", "b", ROOT))


def test_a_backward_does_not_reshard_what_is_frozen() -> None:
    frozen = (Freeze(target="a"), Freeze(target="b"))
    assert lacks(FORWARD, BACKWARD, freezes=frozen[:1])
    inputs = Inputs(batch=2, tensors=(TensorSpec(size=5),))
    assert lacks(FORWARD, BACKWARD, wrap=groups("a", "b", ROOT), freezes=frozen, inputs=inputs)
    assert not lacks(WITHOUT_GRADIENTS, engines=("ddp",))


def test_a_backward_that_comes_to_no_group_leaves_the_root_unsharded() -> None:
    part = chain(a=Linear(out=3), b=Linear(out=3))
    case = make_case(
        chain(m=part, c=Linear(out=3)),
        (WITHOUT_GRADIENTS, ops.Forward(target="m"), BACKWARD, STEP),
        wrap=groups("m.a", ROOT),
        freezes=(Freeze(target="m.a"),),
        ignored=("m.b",),
    )
    assert lacking(case) == [3]
    assert lacking(replace(case, ignored=())) == []


def test_a_forward_or_an_unshard_after_the_backward_leaves_groups_unsharded_until_a_reshard() -> (
    None
):
    for op in (WITHOUT_GRADIENTS, ops.Unshard(target="b")):
        assert lacks(FORWARD, BACKWARD, op)
        assert not lacks(FORWARD, BACKWARD, op, ops.Reshard())
        assert lacks(FORWARD, BACKWARD, op, ops.Reshard(target="a"))


def test_a_forward_of_groups_that_reshard_after_it_leaves_nothing_unsharded() -> None:
    resharding = groups("a", "b", ROOT, reshard=True)
    assert not lacks(WITHOUT_GRADIENTS, wrap=resharding)
    assert lacks(WITHOUT_GRADIENTS, wrap=groups("a", "b", ROOT))
    keep = ops.SetFlag(flag="reshard_after_forward", value=False, target="b", recurse=False)
    assert lacks(keep, WITHOUT_GRADIENTS, wrap=resharding)


def test_what_is_gathered_ahead_may_not_be_used() -> None:
    wrap = (
        WrapGroup(modules=("a",), reshard_after_forward=True, forward_prefetch=("b",)),
        WrapGroup(modules=("b",), reshard_after_forward=True),
    )
    assert lacks(ops.Forward(target="a", grad=False), wrap=wrap)


def test_a_backward_through_a_frozen_root_for_its_inputs_gathers_it() -> None:
    inputs = Inputs(batch=2, tensors=(TensorSpec(size=5, requires_grad=True),))
    frozen = (Freeze(target="a"), Freeze(target="b"))
    off = ops.SetFlag(flag="reshard_after_backward", value=False)
    through = (FORWARD, ops.Reshard(), BACKWARD)
    assert not lacks(*through, freezes=frozen, inputs=inputs)
    assert lacks(off, *through, freezes=frozen, inputs=inputs)
    assert not lacks(off, *through, ops.Reshard(), freezes=frozen, inputs=inputs)


def test_a_backward_of_a_group_that_ran_before_its_root_does_not_reach_the_root() -> None:
    every = groups("a", "b", ROOT)
    alone = (ops.Forward(target="a"), BACKWARD)
    assert lacks(ops.Unshard(), *alone, wrap=every)
    assert not lacks(FORWARD, BACKWARD, ops.Unshard(), *alone, wrap=every)
    assert not lacks(FORWARD, BACKWARD, ops.Unshard(), ops.Reshard(), *alone, wrap=every)


def test_a_model_that_was_built_anew_has_the_roots_of_its_own_first_forwards() -> None:
    every = groups("a", "b", ROOT)
    anew = (
        FORWARD,
        BACKWARD,
        ops.SaveState(),
        ops.CorruptState(how="rebuild"),
        ops.LoadState(),
        ops.Unshard(),
    )
    assert lacks(*anew, ops.Forward(target="a"), BACKWARD, wrap=every)
    assert not lacks(*anew, FORWARD, BACKWARD, wrap=every)


def test_without_resharding_after_backward_groups_stay_unsharded_until_one_that_does() -> None:
    off, on = (ops.SetFlag(flag="reshard_after_backward", value=value) for value in (False, True))
    assert lacks(off, FORWARD, BACKWARD)
    assert lacks(off, FORWARD, ops.Reshard(), BACKWARD)
    assert not lacks(off, FORWARD, BACKWARD, on, AGAIN, BACKWARD)


@pytest.mark.parametrize(
    "op", [ops.Cast(dtype="float64"), ops.Abort(target="a")], ids=lambda op: op.tag
)
def test_a_cast_and_a_reset_reshard_themselves(op: Op) -> None:
    assert not lacks(WITHOUT_GRADIENTS, op)


def test_a_reshard_is_put_where_one_is_asked_for_and_moves_expectations() -> None:
    expect = (Expect(engine="fully_shard", kind="error", op=1, pattern="x"),)
    case = stepping(WITHOUT_GRADIENTS, FREEZE, expect=expect)
    with pytest.raises(InvalidCase, match="set_requires_grad is for sharded parameters"):
        validate(case)
    mended = repaired(case)
    assert mended is not None
    assert mended.schedule == (WITHOUT_GRADIENTS, ops.Reshard(), FREEZE, STEP)
    assert mended.expect[0].op == 2
