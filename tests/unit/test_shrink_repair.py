"""Repair: what dangles after an edit is dropped or redirected, and widths fit again."""

from __future__ import annotations

from cases import graph
from msgspec.structs import replace

from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Mesh, TensorSpec, Tie, WrapGroup
from fuzzshard.case.edit import set_module
from fuzzshard.case.graph import Alias, Call, TensorOp
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import (
    Backward,
    CorruptState,
    Forward,
    LoadState,
    SaveState,
    SetFlag,
    SetRequiresGrad,
)
from fuzzshard.shrink.repair import repaired

MODEL = graph(
    "h0 = a(x)",
    "h1 = b(h0)",
    "h2 = c(h1)",
    "h3 = add(h2, x)",
    a=Linear(out=4),
    b=Linear(out=4),
    c=Alias(target="b"),
)
CASE = Case(
    seed=0,
    model=MODEL,
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward()),
)


def without(case: Case, path: str) -> Case:
    return fixed(set_module(case, path, None))


def test_a_valid_case_is_left_alone() -> None:
    assert repaired(CASE) == CASE


def test_readers_of_a_removed_module_read_its_argument() -> None:
    assert without(CASE, "a").model.nodes[0] == Call(name="h1", module="b", args=("x",))


def test_an_alias_goes_with_its_target() -> None:
    left = without(CASE, "b").model
    assert [c.name for c in left.children] == ["a"]
    assert left.nodes == (MODEL.nodes[0], TensorOp(name="h3", op="add", args=("h0", "x")))


def test_references_to_a_removed_module_are_dropped() -> None:
    case = replace(
        CASE,
        wrap=(WrapGroup(modules=("a",)), WrapGroup(modules=("b",)), WrapGroup(modules=("",))),
        checkpoints=(Checkpoint(module="a"),),
        freezes=(Freeze(target="a.bias"),),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
        schedule=(
            SetFlag(flag="requires_gradient_sync", value=False, target="a", recurse=False),
            SetRequiresGrad(target="a", value=False),
            Forward(target="a"),
            Backward(),
        ),
    )
    left = without(case, "a")
    assert [g.modules for g in left.wrap] == [("b",), ("",)]
    assert (left.checkpoints, left.freezes, left.ties) == ((), (), ())
    assert left.schedule == (Forward(), Backward())


def fixed(case: Case) -> Case:
    found = repaired(case)
    assert found is not None
    return found


def test_a_reference_to_a_parameter_that_a_simpler_leaf_lacks_names_its_first_one() -> None:
    case = replace(CASE, freezes=(Freeze(target="a.bias"),))
    assert fixed(set_module(case, "a", RawParameter())).freezes == (Freeze(target="a.weight"),)


def test_a_backward_without_a_forward_is_dropped() -> None:
    schedule = (Backward(), Forward(), Backward(), Backward())
    assert fixed(replace(CASE, schedule=schedule)).schedule == (Forward(), Backward())


def test_an_int_reshard_follows_the_mesh() -> None:
    wrap = (WrapGroup(modules=("",), reshard_after_forward=4),)
    assert fixed(replace(CASE, wrap=wrap)).wrap[0].reshard_after_forward == 2


def test_another_mesh_follows_the_ranks() -> None:
    def moved(*axes: int) -> tuple[Op, ...]:
        rebuilt = CorruptState(how="rebuild", mesh=axes)
        return Forward(), Backward(), SaveState(), rebuilt, LoadState(), Forward()

    for axes, fitting in (((4,), (2,)), ((2, 2), (2, 1)), ((1, 4), (1, 2))):
        assert fixed(replace(CASE, schedule=moved(*axes))).schedule == moved(*fitting)


def test_widths_that_do_not_fit_any_more_become_equal() -> None:
    wide = set_module(CASE, "a", Linear(out=9))
    left = fixed(set_module(set_module(wide, "c", None), "b", None))
    assert left.model.child("a") == Linear(out=4)
    assert left.inputs.tensors[0].size == 4


def test_readers_of_a_removed_embedding_read_another_float() -> None:
    model = graph(
        "h0 = e(ids)", "h1 = f(h0)", inputs="ids x", e=Embedding(vocab=3, dim=2), f=Linear(out=2)
    )
    tensors = (TensorSpec(kind="ids", size=3), TensorSpec(size=2))
    case = replace(CASE, model=model, inputs=Inputs(batch=2, tensors=tensors))
    assert without(case, "e").model.nodes == (Call(name="h1", module="f", args=("x",)),)


def test_a_model_without_parameters_is_beyond_repair() -> None:
    assert (
        repaired(replace(CASE, model=replace(MODEL, children=(), nodes=(), outputs=("x",))))
        is None
    )
