"""Whose outputs an addition in place may change."""

from __future__ import annotations

from cases import call, chain, children, make_case, tensor_op

from fuzzshard.case.graph import Block
from fuzzshard.case.in_place import changed_outputs
from fuzzshard.parts.leaves.linear import Linear

LINEAR = Linear(out=5)


def block(*nodes, output: str, **modules) -> Block:
    return Block(children=children(**modules), nodes=nodes, outputs=(output,))


def changed(model: Block) -> set[str]:
    return set(changed_outputs(make_case(model, wrap=())))


def test_an_output_is_changed_where_its_caller_adds_to_it() -> None:
    model = block(
        call("h0", "a", "x"),
        call("h1", "b", "h0"),
        tensor_op("h2", "iadd", "h1", "h0"),
        output="h2",
        a=LINEAR,
        b=LINEAR,
    )
    assert changed(model) == {"b"}


def test_what_is_computed_from_an_output_is_another_tensor() -> None:
    model = block(
        call("h0", "a", "x"),
        tensor_op("h1", "relu", "h0"),
        tensor_op("h2", "iadd", "h1", "h0"),
        output="h2",
        a=LINEAR,
    )
    assert changed(model) == set()


def test_a_detached_output_shares_its_memory() -> None:
    model = block(
        call("h0", "a", "x"),
        tensor_op("h1", "detach", "h0"),
        tensor_op("h2", "iadd", "h1", "x"),
        output="h0",
        a=LINEAR,
    )
    assert changed(model) == {"a"}


def test_the_output_of_a_block_is_that_of_the_module_within_it() -> None:
    model = block(
        call("h0", "inner", "x"),
        tensor_op("h1", "iadd", "h0", "x"),
        output="h1",
        inner=chain(a=LINEAR),
    )
    assert changed(model) == {"inner", "inner.a"}


def test_a_block_that_adds_to_its_input_changes_what_its_caller_has() -> None:
    adds = block(tensor_op("h0", "iadd", "x", "x"), output="h0")
    model = block(call("h0", "a", "x"), call("h1", "adds", "h0"), output="h1", a=LINEAR, adds=adds)
    assert changed(model) == {"a"}
