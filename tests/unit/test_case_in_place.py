"""Whose outputs an addition in place may change."""

from __future__ import annotations

from typing import Any

import pytest
from cases import chain, graph, make_case

from fuzzshard.analysis.in_place import changed_outputs
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.graph import Block
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear

LINEAR = Linear(out=5)
BOTH: Any = {"outputs": "h0 h1", "returns": "tuple"}


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        (graph("h0 = a(x)", "h1 = b(h0)", "h2 = iadd(h1, h0)", a=LINEAR, b=LINEAR), {"b"}),
        (graph("h0 = a(x)", "h1 = relu(h0)", "h2 = iadd(h1, h0)", a=LINEAR), set()),
        (graph("h0 = a(x)", "h1 = detach(h0)", "h2 = iadd(h1, x)", outputs="h0", a=LINEAR), {"a"}),
        (graph("h0 = inner(x)", "h1 = iadd(h0, x)", inner=chain(a=LINEAR)), {"inner", "inner.a"}),
        (graph("h0 = a(x)", "h1 = adds(h0)", a=LINEAR, adds=graph("h0 = iadd(x, x)")), {"a"}),
    ],
    ids=[
        "an output that its caller adds to",
        "what is computed from an output",
        "a detached output, which shares its memory",
        "the output of a block and of the module within it",
        "a block that adds to its input",
    ],
)
def test_outputs_are_changed_in_place(model: Block, changed: set[str]) -> None:
    assert set(changed_outputs(make_case(model, wrap=()))) == changed


@pytest.mark.parametrize(
    ("model", "may"),
    [
        (graph("h0 = a(x)", "h1 = b(h0)", a=LINEAR, b=LINEAR), True),
        (graph("h0 = a(x)", "h1 = b(h0)", "h2 = add(h0, h1)", a=LINEAR, b=LINEAR), True),
        (graph("h0 = inner(x)", inner=chain(a=LINEAR)), True),
        (graph("h0 = a(x)", "h1 = b(h0)", a=LINEAR, b=LINEAR, **BOTH), False),
        (graph("h0 = a(x)", outputs="h0 h0", a=LINEAR, returns="tuple"), False),
        (graph("h0 = a(x)", outputs="h0 x", a=LINEAR, returns="tuple"), False),
        (graph("h0 = a(x)", "h1 = relu(h0)", a=LINEAR), False),
        (graph("h0 = a(x)", "h1 = detach(h0)", a=LINEAR, **BOTH), False),
        (chain(a=LINEAR, b=Activation()), False),
        (graph("h0 = a(x)", "h1 = inner(h0)", a=LINEAR, inner=graph(outputs="x")), False),
    ],
    ids=[
        "the result of a module",
        "a sum",
        "the result of a module within a block",
        "what another module reads",
        "one output twice",
        "an input",
        "what a relu has saved",
        "an output and the same, detached",
        "the result of a module without parameters",
        "what a block returns as it is",
    ],
)
def test_a_loss_changes_what_no_backward_needs(model: Block, may: bool) -> None:
    assert is_valid(make_case(model, wrap=(), loss="dot"))
    assert is_valid(make_case(model, wrap=(), loss="doubled_in_place")) is may
