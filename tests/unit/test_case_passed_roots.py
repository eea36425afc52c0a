"""Which FSDP roots a backward passes; that the reference goes by it is in corpus/regressions."""

from __future__ import annotations

import pytest
from cases import BACKWARD, ROOT, chain, graph, groups, make_case

from fuzzshard.analysis.passed_roots import passed_roots
from fuzzshard.case.case import Case
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Forward
from fuzzshard.parts.options.precision import Precision
from fuzzshard.parts.options.wrap_group import WrapGroup


def two_inputs(**inner: Linear | Activation) -> Case:
    """Only the first input of the last module is needed for the loss; the second is of ``b``."""
    (name,) = inner
    node = f"h = {name}(x0)"
    last = graph(node, outputs="h x1", inputs="x0 x1", returns="tuple", **inner)
    model = graph(
        "h = a(x)",
        "k = b(x)",
        "y = last(h, k)",
        outputs="y.0 y.1",
        returns="tuple",
        a=Linear(out=3),
        b=Linear(out=3),
        last=last,
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


@pytest.mark.parametrize(
    ("precision", "passed"), [(None, {1}), (Precision(param="float16"), set())]
)
def test_the_hook_of_an_input_that_is_returned_is_on_what_the_cast_made_of_it(
    precision: Precision | None, passed: set[int]
) -> None:
    last = graph("h = c(x)", outputs="h x", inputs="x", returns="tuple", c=Linear(out=3))
    model = graph(
        "h = a(x)", "y = last(h)", outputs="y.0 h", returns="tuple", a=Linear(out=3), last=last
    )
    wrap = tuple(WrapGroup(modules=(m,), precision=precision) for m in ("last.c", "last"))
    schedule = (Forward(outputs=(1,)), BACKWARD)
    case = make_case(model, schedule, wrap=wrap, engines=("fully_shard",))
    assert passed_roots(case, 0) == {1: passed}
