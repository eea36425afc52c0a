"""What a run may leave behind, and what not."""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, ROOT, STEP, groups, make_case

from fuzzshard.case.case import Case, Mesh, WrapGroup
from fuzzshard.engines.fully_shard.state import GroupState
from fuzzshard.oracles.after_run import leak_findings
from fuzzshard.parts.ops import Forward, SetFlag, Unshard
from fuzzshard.training.leftovers import Layout, Leftovers
from fuzzshard.training.trace import Trace

CLEAN = GroupState(
    {"a.weight": 0}, gathers=False, keeps_buffer=False, reduces=False, partial=False, idle=True
)
ONE_STEP = (FORWARD, BACKWARD, STEP)
ALONE = make_case(schedule=ONE_STEP, wrap=groups(ROOT))


def left(case: Case, *, pending: bool = False, **state: object) -> list[str]:
    """The kinds of leaks where the only group of a case is left in a state."""
    leftovers = Leftovers({}, {}, {0: CLEAN._replace(**state)}, pending)
    return [
        f.detail
        for f in leak_findings(case, "fully_shard", Trace(leftovers=leftovers), Trace(), 0)
    ]


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ({"unsharded": {"a.weight": 25}}, "memory"),
        ({"gathers": True}, "gather"),
        ({"keeps_buffer": True}, "buffer"),
        ({"reduces": True}, "reduction"),
        ({"partial": True}, "reduction"),
        ({"idle": False}, "state"),
    ],
)
def test_what_nothing_in_the_schedule_asks_for_is_a_leak(
    state: dict[str, object], kind: str
) -> None:
    assert left(ALONE, **state) == [kind]
    assert left(ALONE) == []


def test_what_the_schedule_asks_for_may_be_left() -> None:
    def after(*ops: object) -> Case:
        return make_case(
            schedule=(*ops, *ONE_STEP), wrap=groups(ROOT), mesh=Mesh(replicate=2, shard=2)
        )

    whole = {"unsharded": {"a.weight": 25}}
    assert left(make_case(schedule=(FORWARD,), wrap=groups(ROOT)), **whole) == []
    kept = make_case(
        schedule=(SetFlag(flag="reshard_after_backward", value=False), FORWARD, BACKWARD)
    )
    assert left(kept, **whole) == []
    assert left(after(SetFlag(flag="is_last_backward", value=False)), reduces=True) == []
    assert left(after(SetFlag(flag="requires_all_reduce", value=False)), partial=True) == []
    ahead = make_case(schedule=(*ONE_STEP, Unshard(async_op=True)), wrap=groups(ROOT))
    assert left(ahead, gathers=True) == []


def test_what_a_forward_leaves_under_way_is_ended_by_the_backward_of_its_root() -> None:
    listed = groups(("a", "b"), ROOT)
    assert left(make_case(schedule=(FORWARD,), wrap=listed), idle=False) == []
    assert left(make_case(schedule=(FORWARD, BACKWARD), wrap=listed), idle=False) == ["state"]
    ahead = (WrapGroup(modules=("b",)), WrapGroup(modules=("a",), forward_prefetch=("b",)))
    evaluated = (FORWARD, BACKWARD, Forward(target="a", grad=False))
    assert left(make_case(schedule=evaluated[:2], wrap=ahead), gathers=True) == ["gather"]
    assert left(make_case(schedule=evaluated, wrap=ahead), gathers=True) == []


def test_a_backward_may_leave_what_it_gathers_for_another_root() -> None:
    other = (WrapGroup(modules=("a",)), WrapGroup(modules=("b",), backward_prefetch=("a",)))
    of_one = (Forward(target="b"), BACKWARD)
    assert left(make_case(schedule=of_one, wrap=other), gathers=True) == []
    assert left(make_case(schedule=(FORWARD, BACKWARD), wrap=other), gathers=True) == ["gather"]


def test_hooks_and_misplaced_states_are_leaks_of_any_engine() -> None:
    layout = Layout((), (), (4,), (4,), "float32", "cpu")
    leftovers = Leftovers(
        {"_forward_hooks of a": (1, 2)},
        {"exp_avg of a.bias": (layout, layout._replace(dtype="bfloat16"))},
        {},
        False,
    )
    found = leak_findings(ALONE, "ddp", Trace(leftovers=leftovers), Trace(), 0)
    assert [(f.detail, f.name, f.op) for f in found] == [
        ("hook", "_forward_hooks of a", 2),
        ("layout", "exp_avg of a.bias", 2),
    ]


def test_a_run_that_an_expected_error_ended_is_not_judged() -> None:
    assert leak_findings(ALONE, "fully_shard", Trace(), Trace(), 0) == []


def test_a_model_that_outlives_its_run_is_a_leak_unless_the_plain_model_does_too() -> None:
    clean = Leftovers({}, {}, {}, False)
    trace = Trace(leftovers=clean, leaked=("module a", "a.weight"))
    kinds = [f.detail for f in leak_findings(ALONE, "ddp", trace, Trace(), 0)]
    assert kinds == ["survivor"]
    assert leak_findings(ALONE, "ddp", trace, Trace(leaked=("module a",)), 0) == []
    assert leak_findings(ALONE, "fsdp1", trace, Trace(), 0) == []
