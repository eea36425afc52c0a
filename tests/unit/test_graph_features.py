"""Features that follow from the autograd graph of a case."""

from __future__ import annotations

from typing import Any

import pytest
from cases import BACKWARD, FORWARD, STEP, call, chain, children, groups, make_case, tensor_op
from msgspec.structs import replace

from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.features import features
from fuzzshard.case.graph import Activation, Alias, Block, Linear
from fuzzshard.case.schedule import Forward, SetFlag, Unshard

LINEAR = Linear(out=5, bias=False)
SYNC, NO_SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (True, False))
ALL_REDUCE, NO_ALL_REDUCE = (SetFlag(flag="requires_all_reduce", value=value) for value in (True, False))
TWO_OUTPUTS = Block(
    children=children(a=LINEAR, b=LINEAR),
    nodes=(call("h0", "a", "x"), call("h1", "b", "x")),
    outputs=("h0", "h1"),
    returns="tuple",
)
FIRST, SECOND = (Forward(outputs=(i,)) for i in (0, 1))
HSDP = Mesh(replicate=1, shard=2)


def graph_features(case: Case) -> set[str]:
    return {feature for feature in features(case) if feature.startswith("graph:")}


APART = {"graph:list_group_apart"}
IN_PART = {"graph:list_group_in_part", "graph:list_group_apart"}
LATE = {"graph:list_group_late"}
MISSED = {"graph:sync_missed"}
DIFFERS = {"graph:partial_reduction_differs"}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ((FORWARD, BACKWARD), set()),
        ((SECOND, BACKWARD), set()),
        ((FIRST, BACKWARD), LATE),
        ((Forward(target="a"),), IN_PART),
        ((Forward(target="b"), BACKWARD), IN_PART | LATE),
        ((Forward(target="a", grad=False), Forward(target="b"), BACKWARD), IN_PART),
        ((Forward(target="a", grad=False), SECOND, BACKWARD), IN_PART),
    ],
)
def test_a_list_group_has_its_hooks_when_the_last_of_its_modules_has_run(schedule, expected) -> None:
    assert graph_features(make_case(TWO_OUTPUTS, schedule, wrap=groups(("a", "b"), ""))) == expected


def test_a_frozen_module_of_a_list_group_needs_its_parameters_in_backward_too() -> None:
    model = Block(
        children=children(p=LINEAR, a=LINEAR, b=LINEAR),
        nodes=(call("h0", "p", "x"), call("h1", "a", "h0"), call("h2", "b", "x")),
        outputs=("h1",),
    )
    case = make_case(model, (FORWARD, BACKWARD), wrap=groups(("a", "b"), ""), freezes=(Freeze(target="a"),))
    assert graph_features(case) == LATE


@pytest.mark.parametrize(
    ("middle", "outputs", "requires_grad", "expected"),
    [
        ("h0", ("h3",), False, LATE),
        ("h0", ("h3", "h1"), False, set()),
        ("h1", ("h3",), False, set()),
        ("x", ("h3", "h0"), False, set()),
        ("x", ("h3", "h0"), True, LATE),
    ],
    ids=["no last output", "all outputs", "one after the other", "no inputs with gradients", "inputs with"],
)
def test_a_run_of_a_list_group_ends_the_backward_of_another(middle, outputs, requires_grad, expected) -> None:
    nodes = (call("h0", "a", "x"), call("h1", "b", "x"), call("h2", "a", middle), call("h3", "b", "h2"))
    model = Block(children=children(a=LINEAR, b=LINEAR), nodes=nodes, outputs=outputs, returns="tuple")
    inputs = Inputs(batch=2, tensors=(TensorSpec(size=5, requires_grad=requires_grad),))
    case = make_case(model, (FORWARD, BACKWARD), wrap=groups(("a", "b"), ""), inputs=inputs)
    assert graph_features(case) & LATE == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"checkpoints": (Checkpoint(module="a"),)}, APART),
        ({"checkpoints": (Checkpoint(module="a"), Checkpoint(module="b"))}, APART),
        ({"checkpoints": (Checkpoint(module=""),)}, set()),
        ({"wrap": groups("a", "b", ""), "checkpoints": (Checkpoint(module="a"),)}, set()),
    ],
    ids=["not recomputed", "one of two", "each by itself", "both together", "groups of one module"],
)
def test_modules_of_a_list_group_that_are_recomputed_apart(
    changes: dict[str, Any], expected: set[str]
) -> None:
    case = make_case(chain(a=LINEAR, b=LINEAR), (FORWARD, BACKWARD), wrap=groups(("a", "b"), ""))
    assert graph_features(replace(case, **changes)) == expected


def test_a_module_that_is_called_by_a_method_parts_its_list_group() -> None:
    inside = Block(
        children=children(c=LINEAR), nodes=(call("h0", "c", "x"),), outputs=("h0",), method="encode"
    )
    case = make_case(chain(a=LINEAR, b=inside), (FORWARD, BACKWARD), wrap=groups(("a", "b"), ""))
    assert graph_features(case) == APART


def test_a_module_that_runs_twice_leaves_its_list_group_in_part() -> None:
    model = Block(
        children=children(a=LINEAR, r=Activation()),
        nodes=(call("h0", "a", "x"), call("h1", "r", "x"), call("h2", "r", "h0")),
        outputs=("h2",),
    )
    case = make_case(model, (FORWARD, BACKWARD), wrap=groups(("a", "r"), ""))
    assert graph_features(case) == IN_PART | LATE


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ((NO_SYNC, FORWARD, BACKWARD, SYNC, FORWARD, BACKWARD), set()),
        ((NO_SYNC, FORWARD, BACKWARD, SYNC, FIRST, BACKWARD), MISSED),
        ((NO_SYNC, FIRST, BACKWARD, SYNC, FORWARD, BACKWARD), set()),
        ((NO_SYNC, FORWARD, BACKWARD, FIRST, BACKWARD), set()),
    ],
)
def test_a_synchronised_backward_misses_what_has_accumulated(schedule, expected) -> None:
    assert graph_features(make_case(TWO_OUTPUTS, schedule, wrap=groups("a", ""))) == expected


@pytest.mark.parametrize(
    ("schedule", "mesh", "expected"),
    [
        ((NO_ALL_REDUCE, FORWARD, BACKWARD, ALL_REDUCE, FORWARD, BACKWARD), HSDP, set()),
        ((NO_ALL_REDUCE, FORWARD, BACKWARD, ALL_REDUCE, FIRST, BACKWARD), HSDP, DIFFERS),
        ((NO_ALL_REDUCE, FIRST, BACKWARD, SECOND, BACKWARD), HSDP, DIFFERS),
        ((NO_ALL_REDUCE, FIRST, SECOND, BACKWARD), HSDP, DIFFERS),
        ((NO_ALL_REDUCE, FIRST, BACKWARD, ALL_REDUCE, SECOND, BACKWARD), Mesh(shard=2), set()),
    ],
)
def test_reductions_over_one_replica_may_be_of_different_parameters(schedule, mesh, expected) -> None:
    case = make_case(TWO_OUTPUTS, schedule, wrap=groups(""), mesh=mesh)
    assert graph_features(case) - MISSED == expected


def test_a_frozen_parameter_brings_no_gradient() -> None:
    schedule = (NO_SYNC, FORWARD, BACKWARD, SYNC, FIRST, BACKWARD)
    case = make_case(TWO_OUTPUTS, schedule, wrap=groups("a", ""), freezes=(Freeze(target="b"),))
    assert graph_features(case) == set()


def test_an_output_of_a_wrapped_module_is_changed_in_place() -> None:
    nodes = (call("h0", "a", "x"), tensor_op("h1", "iadd", "h0", "x"))
    model = Block(children=children(a=LINEAR), nodes=nodes, outputs=("h1",))
    assert graph_features(make_case(model, wrap=groups("a"))) == {"graph:iadd_to_wrapped"}
    assert graph_features(make_case(chain(a=LINEAR), wrap=groups("a"))) == set()
    assert graph_features(make_case(model, wrap=groups(""))) == set()


def test_a_backward_misses_the_first_of_several_calls() -> None:
    unused = Block(
        children=children(a=LINEAR), nodes=(call("h0", "a", "x"), call("h1", "a", "x")), outputs=("h1",)
    )
    assert graph_features(make_case(unused, wrap=groups("a"))) == {"graph:first_run_missed"}
    used = Block(
        children=children(a=LINEAR), nodes=(call("h0", "a", "x"), call("h1", "a", "h0")), outputs=("h1",)
    )
    assert graph_features(make_case(used, wrap=groups("a"))) == set()


def test_a_backward_misses_the_first_of_two_forwards() -> None:
    for schedule, missed in (((FIRST, FORWARD), "b"), ((FORWARD, FIRST), ""), ((SECOND, FORWARD), "a")):
        case = make_case(TWO_OUTPUTS, (*schedule, BACKWARD), wrap=groups("a", "b"))
        assert graph_features(case) == ({"graph:first_run_missed"} if missed else set())


def test_an_input_without_a_gradient_gets_zeros_beside_one_that_has_one() -> None:
    inner = Block(
        children=children(c=LINEAR), nodes=(call("h0", "c", "x0"),), outputs=("h0",), inputs=("x0", "x1")
    )
    nodes = (call("h0", "a", "x"), call("h1", "b", "x"), call("h2", "m", "h0", "h1"))
    for outputs, expected in (("h2",), {"graph:zeros_for_none"}), (("h2", "h1"), set()):
        model = Block(
            children=children(a=LINEAR, b=LINEAR, m=inner), nodes=nodes, outputs=outputs, returns="tuple"
        )
        assert graph_features(make_case(model, wrap=groups("m"))) == expected
        assert graph_features(make_case(model, wrap=groups("m.c"))) == set()


def test_parameters_change_after_an_all_gather_was_begun() -> None:
    begin = Unshard(async_op=True)
    for schedule, expected in (
        ((FORWARD, BACKWARD, begin, STEP), {"graph:unshard_then_change"}),
        ((begin, FORWARD, BACKWARD, STEP), set()),
        ((FORWARD, BACKWARD, Unshard(), STEP), set()),
    ):
        assert graph_features(make_case(schedule=schedule)) == expected


def test_a_prefetched_module_that_does_not_run_stays_gathered() -> None:
    wrap = (WrapGroup(modules=("a",), forward_prefetch=("b",)), *groups("b", ""))
    evaluate = Forward(grad=False, target="a")
    case = make_case(TWO_OUTPUTS, (FORWARD, BACKWARD, evaluate, STEP), wrap=wrap)
    assert graph_features(case) == {"graph:unshard_then_change"}
    case = make_case(TWO_OUTPUTS, (FORWARD, BACKWARD, Forward(grad=False), STEP), wrap=wrap)
    assert graph_features(case) == set()


@pytest.mark.parametrize(
    ("schedule", "frozen", "expected"),
    [
        ((FORWARD, BACKWARD), (), set()),
        ((FIRST, BACKWARD), (), {"graph:unit_missed"}),
        ((FORWARD, BACKWARD), ("b",), {"graph:unit_missed"}),
        ((Forward(grad=False), BACKWARD), (), set()),
        ((FIRST, SECOND, BACKWARD), (), set()),
    ],
)
def test_a_unit_of_fsdp1_that_ran_gets_no_gradient(schedule, frozen, expected) -> None:
    case = make_case(
        TWO_OUTPUTS,
        (*schedule, BACKWARD),
        wrap=groups("b"),
        freezes=tuple(Freeze(target=name) for name in frozen),
        engines=("fsdp1",),
    )
    assert graph_features(case) & {"graph:unit_missed"} == expected


@pytest.mark.parametrize(
    ("outputs", "needs", "returns"), [("hx", True, True), ("hx", False, False), ("h", True, False)]
)
def test_a_unit_of_fsdp1_returns_an_input_that_needs_a_gradient(outputs, needs, returns) -> None:
    unit = Block(
        children=children(a=LINEAR), nodes=(call("h", "a", "x"),), outputs=tuple(outputs), returns="tuple"
    )
    model = Block(children=children(u=unit), nodes=(call("y", "u", "x"),), outputs=("y.0",))
    inputs = Inputs(batch=2, tensors=(TensorSpec(size=4, requires_grad=needs),))
    case = make_case(model, (FORWARD, BACKWARD), inputs=inputs, wrap=groups("u"), engines=("fsdp1",))
    assert ("graph:unit_returns_input" in graph_features(case)) is returns


def test_a_list_group_has_modules_outside_of_its_root() -> None:
    model = Block(
        children=children(m=chain(c=LINEAR), a=LINEAR),
        nodes=(call("h0", "m", "x"), call("h1", "a", "h0")),
        outputs=("h1",),
    )
    for wrap, leaves in (
        (groups(("m.c", "a"), "m"), True),
        (groups(("m.c", "a"), "m", ""), False),
        (groups(("m", "a")), False),
    ):
        assert ("wrap:list_group_leaves_root" in features(make_case(model, wrap=wrap))) is leaves


def test_a_list_group_holds_a_module_below_another_one_of_it() -> None:
    inner = Block(
        children=children(c=LINEAR, s=Alias(target="a")), nodes=(call("h", "c", "x"),), outputs=("h",)
    )
    model = Block(
        children=children(m=inner, a=LINEAR),
        nodes=(call("h0", "m", "x"), call("h1", "a", "h0")),
        outputs=("h1",),
    )
    for wrap, holds in ((groups(("m", "a")), True), (groups(("m.c", "a")), False), (groups("m", "a"), False)):
        assert ("wrap:list_group_holds_member" in features(make_case(model, wrap=wrap))) is holds
