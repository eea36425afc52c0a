"""After which ops a group of ``fully_shard`` may be unsharded, so that users have to reshard."""

from __future__ import annotations

from cases import AGAIN, BACKWARD, FORWARD, ROOT, STEP, call, children, groups, make_case

from fuzzshard.case.case import Freeze, WrapGroup
from fuzzshard.case.graph import Block
from fuzzshard.case.schedule_state import follow
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Forward, Reshard, SetFlag, Unshard

PARTLY_USED = Block(
    children=children(a=Linear(out=5), b=Linear(out=3)),
    nodes=(call("h", "a", "x"), call("z", "b", "h")),
    outputs=("h", "z"),
    returns="tuple",
)


def before_step(
    *schedule: Op, wrap: tuple[WrapGroup, ...] = groups("a", "b"), **options: object
) -> bool:
    case = make_case(PARTLY_USED, schedule=(*schedule, STEP), wrap=wrap, **options)
    *_, at = follow(case)
    return at.lacks_reshard


def test_a_backward_through_all_groups_reshards_them_without_a_wrapped_root() -> None:
    assert not before_step(FORWARD, BACKWARD)
    assert not before_step(FORWARD, AGAIN, BACKWARD)


def test_a_group_that_the_loss_does_not_depend_on_may_stay_unsharded() -> None:
    first = Forward(outputs=(0,))
    assert before_step(first, BACKWARD)
    assert not before_step(first, BACKWARD, wrap=groups("a"))
    assert not before_step(first, BACKWARD, wrap=groups("a", "b", ROOT))


def test_a_frozen_group_may_stay_unsharded() -> None:
    assert before_step(FORWARD, BACKWARD, freezes=(Freeze(target="a"),))


def test_a_forward_or_an_unshard_after_the_backward_leaves_groups_unsharded_until_a_reshard() -> (
    None
):
    for op in (Forward(batch=1, grad=False), Unshard(target="b")):
        assert before_step(FORWARD, BACKWARD, op)
        assert not before_step(FORWARD, BACKWARD, op, Reshard())
        assert before_step(FORWARD, BACKWARD, op, Reshard(target="a"))


def test_without_resharding_after_backward_groups_stay_unsharded() -> None:
    assert before_step(SetFlag(flag="reshard_after_backward", value=False), FORWARD, BACKWARD)
