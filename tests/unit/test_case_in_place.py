"""Whose outputs an addition in place may change."""

from __future__ import annotations

import pytest
from cases import chain, graph, make_case

from fuzzshard.analysis.in_place import changed_outputs
from fuzzshard.case.graph import Block
from fuzzshard.parts.leaves.linear import Linear

LINEAR = Linear(out=5)


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
