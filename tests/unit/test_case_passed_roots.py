"""Which FSDP roots a backward passes; that the reference goes by it is in corpus/regressions."""

from __future__ import annotations

import pytest
from cases import BACKWARD, ROOT, call, chain, children, groups, make_case

from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block
from fuzzshard.case.passed_roots import passed_roots
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Forward


def two_inputs(**inner: Linear | Activation) -> Case:
    """Only the first input of the last module is needed for the loss; the second is of ``b``."""
    (name,) = inner
    last = Block(
        children=children(**inner),
        nodes=(call("h", name, "x0"),),
        outputs=("h", "x1"),
        inputs=("x0", "x1"),
        returns="tuple",
    )
    model = Block(
        children=children(a=Linear(out=3), b=Linear(out=3), last=last),
        nodes=(call("h", "a", "x"), call("k", "b", "x"), call("y", "last", "h", "k")),
        outputs=("y.0", "y.1"),
        returns="tuple",
    )
    schedule = (Forward(outputs=(0,)), BACKWARD)
    return make_case(model, schedule, wrap=groups("a", "b", "last"), engines=("fully_shard",))


@pytest.mark.parametrize(
    ("inner", "passed"),
    [({"c": Linear(out=3)}, {0, 1, 2}), ({"c": Activation()}, {0, 2})],
    ids=["parameters", "no-parameters"],
)
def test_a_backward_goes_on_through_all_inputs_of_a_module_with_parameters(
    inner: dict[str, Linear | Activation], passed: set[int]
) -> None:
    assert passed_roots(two_inputs(**inner), 0) == {1: passed}


def test_a_backward_passes_the_outermost_group_of_what_ran() -> None:
    model = chain(a=Linear(out=3), b=Linear(out=3))
    schedule = (Forward(target="a"), BACKWARD, Forward(), BACKWARD)
    inner = make_case(model, schedule, wrap=groups("a", "b"), engines=("fully_shard",))
    assert passed_roots(inner, 0) == {1: {0}, 3: {0, 1}}
    whole = make_case(model, (Forward(), BACKWARD), wrap=groups("a", ROOT))
    assert passed_roots(whole, 0) == {1: {1}}
