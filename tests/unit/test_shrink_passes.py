"""Single passes and edits: what they change and what they leave as it is."""

from __future__ import annotations

from cases import graph
from msgspec.structs import replace

from fuzzshard.analysis.order import size_order
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.edit import by_prefix, sort_nodes
from fuzzshard.case.graph import Alias, Block, Call, TensorOp
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import Backward, Forward, SetFlag, Step
from fuzzshard.shrink import dag_passes, leaf_passes, model_passes, plan_passes

INNER = graph(
    "h0 = p(a)",
    "h1 = q(b)",
    outputs="h0 h1",
    inputs="a b",
    returns="tuple",
    p=Linear(out=3),
    q=Linear(out=4),
)
MODEL = graph(
    "t = inner(x, x)", "c = concat(t.0, t.1)", "z = last(c)", inner=INNER, last=RawParameter()
)
CASE = Case(
    seed=3,
    model=MODEL,
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=5),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward()),
    wrap=(
        WrapGroup(modules=("inner.p",)),
        WrapGroup(modules=("inner",)),
        WrapGroup(modules=("",)),
    ),
)


def test_inlining_a_block_keeps_shapes_and_renames_references() -> None:
    flat = model_passes.inlined(CASE, "inner")
    found = validate(replace(flat, wrap=tuple(g for g in flat.wrap if g.modules != ("?",))))
    assert found.parameters["last.weight"] == (7,)
    assert found.parameters["p.weight"] == (3, 5)
    assert [g.modules for g in flat.wrap] == [("p",), ("?",), ("",)]


def test_inlining_may_wrap_the_children_in_place_of_the_block() -> None:
    case = replace(CASE, wrap=(WrapGroup(modules=("inner",)),))
    assert model_passes.inlined(case, "inner", heirs="all").wrap == (
        WrapGroup(modules=("p", "q")),
    )
    assert model_passes.inlined(case, "inner", heirs="first").wrap == (WrapGroup(modules=("p",)),)


def test_dropping_one_of_two_outputs_makes_the_block_return_a_tensor() -> None:
    first, *_ = [edit(CASE) for edit in dag_passes.outputs(CASE)]
    inner = first.model.child("inner")
    assert isinstance(inner, Block)
    assert (inner.outputs, inner.returns) == (("h1",), "tensor")
    assert first.model.nodes[1] == TensorOp(name="c", op="concat", args=("t", "t"))
    validate(first)


def test_dropping_an_input_drops_the_argument_of_its_callers() -> None:
    first, _ = [edit(CASE) for edit in dag_passes.inputs(CASE)]
    inner = first.model.child("inner")
    assert isinstance(inner, Block)
    assert inner.inputs == ("b",)
    assert first.model.nodes[0] == Call(name="t", module="inner", args=("x",))
    validate(first)


def test_a_flag_goes_with_the_op_that_restores_it() -> None:
    off, on = (SetFlag(flag="requires_gradient_sync", value=v) for v in (False, True))
    case = replace(CASE, schedule=(off, Forward(), Backward(), on, Forward(), Backward(), Step()))
    first = next(iter(plan_passes.ops(case)))(case)
    assert first.schedule == (Forward(), Backward(), Forward(), Backward(), Step())


def test_ops_dropped_together_are_those_that_were_named() -> None:
    ops = (Forward(batch=0), Forward(batch=1), Forward(batch=2), Backward(), Step())
    case = replace(CASE, schedule=ops)
    edits = list(plan_passes.ops(case))
    assert edits[0](edits[2](edits[4](case))).schedule == (ops[1], ops[3])


def test_hoisting_a_block_gives_it_inputs_of_the_width_it_was_called_with() -> None:
    (hoisted,) = (edit(CASE) for edit in model_passes.hoist(CASE))
    assert hoisted.model == INNER
    assert [t.size for t in hoisted.inputs.tensors] == [5, 5]


def test_an_alias_becomes_a_module_of_its_own_or_its_target_is_called() -> None:
    model = graph("h0 = a(x)", "h1 = b(h0)", a=Linear(out=5), b=Alias(target="a"))
    target, copy = (
        edit(replace(CASE, model=model, wrap=()))
        for edit in model_passes.aliases(replace(CASE, model=model, wrap=()))
    )
    assert [n.module for n in target.model.nodes if isinstance(n, Call)] == ["a", "a"]
    assert copy.model.child("b") == Linear(out=5)


def test_names_become_canonical() -> None:
    case = CASE
    for edit in leaf_passes.names(CASE):
        case = edit(case)
    assert [c.name for c in case.model.children] == ["block0", "raw_parameter0"]
    assert [g.modules for g in case.wrap] == [("block0.linear0",), ("block0",), ("",)]
    assert [n.name for n in case.model.nodes] == ["h0", "h1", "h2"]
    validate(case)


def test_nodes_are_sorted_with_as_few_moves_as_needed() -> None:
    nodes = tuple(
        TensorOp(name=n, op="relu", args=(a,)) for n, a in [("c", "b"), ("a", "x"), ("b", "a")]
    )
    block = Block(children=(), nodes=nodes, outputs=("c",))
    assert [n.name for n in sort_nodes(block).nodes] == ["a", "b", "c"]


def test_renaming_by_prefix_moves_whole_subtrees_and_nothing_else() -> None:
    rename = by_prefix({"a.b": "c", "d": ""})
    given = ("a.b", "a.b.w", "a", "a.bc", "d.e", "d", "")
    assert tuple(map(rename, given)) == ("c", "c.w", "a", "a.bc", "e", "", "")


def test_two_ranks_outweigh_fewer_ops_and_those_fewer_modules() -> None:
    two_ranks = replace(CASE, mesh=Mesh(shard=2))
    big = replace(CASE, mesh=Mesh(shard=4))
    one_op = replace(big, schedule=(Forward(),))
    one_leaf = replace(
        big, wrap=(), model=replace(MODEL, children=MODEL.children[1:], nodes=(), outputs=("x",))
    )
    assert sorted((big, one_leaf, one_op, two_ranks), key=size_order) == [
        two_ranks,
        one_op,
        one_leaf,
        big,
    ]
