"""The checker grows a schedule op by op; what it says must not depend on what comes later."""

from __future__ import annotations

from cases import BACKWARD, FORWARD, STEP, make_case

from fuzzshard.analysis.checker import Checker
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case
from fuzzshard.parts import ops
from fuzzshard.strategies import draw_cases


def checker(case: Case) -> Checker:
    return Checker(case, inferred(case))


def test_its_state_is_that_of_a_schedule_whose_end_is_known() -> None:
    for case in draw_cases(7, 150, world_size=4):
        grown = checker(case)
        for at in follow(case):
            pending = [each.place for each in at.pending]
            assert [each.place for each in grown.pending] == pending
            assert (grown.unsharded, grown.frozen) == (at.unsharded, at.frozen)
            assert (grown.case.mesh, grown.paths) == (at.case.mesh, at.paths)
            assert grown.why_not(at.op) is None
            grown.add(at.op)


def test_an_op_that_is_refused_changes_nothing() -> None:
    at = checker(make_case())
    why = at.why_not(BACKWARD)
    assert why is not None
    assert why.problem == "a backward has no pending forward"
    assert not at.accepts(BACKWARD)
    assert at.ops == []
    assert at.accepts(FORWARD)
    assert at.accepts(BACKWARD)


def test_an_op_for_sharded_parameters_comes_after_a_reshard() -> None:
    at = checker(make_case())
    assert all(at.accepts(op) for op in (FORWARD, BACKWARD, ops.Unshard(), STEP))
    assert at.ops == [FORWARD, BACKWARD, ops.Unshard(), ops.Reshard(), STEP]


def test_a_backward_is_refused_once_a_step_has_changed_what_its_graph_needs() -> None:
    at = checker(make_case())
    assert all(at.accepts(op) for op in (FORWARD, BACKWARD, FORWARD, STEP))
    why = at.why_not(BACKWARD)
    assert why is not None
    assert why.problem == "parameters change between a forward and its backward"


def test_no_state_is_saved_that_gradients_of_one_rank_have_changed() -> None:
    off = ops.SetFlag(flag="requires_gradient_sync", value=False)
    at = checker(make_case())
    assert all(at.accepts(op) for op in (ops.SaveState(), off, FORWARD, BACKWARD))
    assert not at.accepts(ops.SaveState())
    assert at.accepts(STEP)
    assert not at.accepts(ops.SaveState())
    assert all(at.accepts(op) for op in (ops.LoadState(), FORWARD))
