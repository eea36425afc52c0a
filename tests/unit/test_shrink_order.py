"""What counts as smaller, and the passes that call every module and read every value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest
from cases import call, chain, float_inputs, graph, groups, make_case
from msgspec.structs import replace

from fuzzshard.analysis.oddities import count_unused, flag_distance
from fuzzshard.analysis.order import leaf_rank, mesh_rank, size_order
from fuzzshard.case.case import Case, Mesh
from fuzzshard.case.graph import Block
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm, RMSNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import Backward, Forward, SetFlag
from fuzzshard.shrink import model_passes, plan_passes, size_passes, use_passes
from fuzzshard.shrink.passes import Edit
from fuzzshard.shrink.repair import repaired

LINEAR = Linear(out=4, bias=False)
OFF = SetFlag(flag="requires_gradient_sync", value=False)


def plain(model: Block | None = None, **fields: object) -> Case:
    """A case on two ranks without a wrap group, of one forward."""
    return make_case(
        model or chain(a=LINEAR, b=LINEAR), (Forward(),), wrap=(), inputs=float_inputs(4), **fields
    )


def offered(edits: Callable[[Case], Iterable[Edit]], case: Case) -> list[Case]:
    return [candidate for edit in edits(case) if (candidate := repaired(edit(case)))]


def test_meshes_are_ordered_two_ranks_one_rank_more_ranks_hsdp() -> None:
    meshes = [
        Mesh(shard=2),
        Mesh(shard=1),
        Mesh(shard=3),
        Mesh(shard=4),
        Mesh(shard=2, replicate=1),
        Mesh(shard=1, replicate=1),
        Mesh(shard=2, replicate=2),
    ]
    assert all(mesh_rank(a) < mesh_rank(b) for a, b in itertools.pairwise(meshes))


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (Mesh(shard=1), []),
        (Mesh(shard=2), [1]),
        (Mesh(shard=4), [2, 1, 3]),
        (Mesh(shard=1, replicate=1), [1]),
    ],
)
def test_meshes_are_offered_in_that_order_and_never_with_more_ranks(
    mesh: Mesh, expected: list[int]
) -> None:
    meshes = [case.mesh for case in offered(plan_passes.meshes, plain(mesh=mesh))]
    assert [m.shard for m in meshes if m.replicate is None] == expected


def test_leaves_are_ordered_by_what_a_reader_has_to_know() -> None:
    leaves: list[Leaf] = [
        Activation(),
        Linear(out=4, bias=False),
        Linear(out=4),
        RawParameter(),
        RawParameter(matrix=True),
        RMSNorm(),
        LayerNorm(bias=False),
        LayerNorm(),
    ]
    assert all(a < b for a, b in itertools.pairwise(map(leaf_rank, leaves)))


def test_a_width_that_the_shards_divide_is_smaller_than_one_that_they_do_not() -> None:
    (two, *_) = offered(size_passes.widths_together, plain())
    assert [m.module for m in two.model.children] == [Linear(out=2, bias=False)] * 2
    uneven = replace(two, model=chain(a=Linear(out=1, bias=False), b=Linear(out=1, bias=False)))
    assert size_order(two) < size_order(uneven)


def test_a_called_module_is_smaller_than_an_uncalled_one() -> None:
    called = plain()
    uncalled = plain(graph("h0 = a(x)", a=LINEAR, b=LINEAR))
    assert count_unused(uncalled) == 1
    assert size_order(called) < size_order(uncalled)
    assert offered(use_passes.call_unused, uncalled)[0].model.outputs == ("b_out0",)
    assert count_unused(offered(use_passes.call_unused, uncalled)[0]) == 0


def test_children_are_called_in_sequence_whatever_the_graph_was() -> None:
    model = graph("p = b(x)", "q = mul(p, x)", "r = b(q)", a=LINEAR, b=LINEAR)
    (chained,) = offered(use_passes.children_in_sequence, plain(model))
    assert chained.model.nodes == (call("a_out0", "a", "x"), call("p", "b", "a_out0"))
    assert chained.model.outputs == ("p",)


def test_two_joined_values_become_a_sequence() -> None:
    model = graph("p = a(x)", "q = b(x)", "r = add(p, q)", a=LINEAR, b=LINEAR)
    first, second = offered(use_passes.join_in_sequence, plain(model))
    assert first.model == graph("p = a(x)", "q = b(p)", a=LINEAR, b=LINEAR)
    assert second.model.outputs == ("p",)


def test_a_value_that_nothing_reads_becomes_the_output_or_its_source() -> None:
    model = graph("p = a(x)", "q = b(x)", outputs="p", a=LINEAR, b=LINEAR)
    last, first = offered(use_passes.read_unread, plain(model))
    assert (last.model.nodes[1], last.model.outputs) == (call("q", "b", "p"), ("q",))
    assert (first.model.nodes[1], first.model.outputs) == (call("p", "a", "q"), ("p",))


def test_two_children_trade_places_with_their_calls() -> None:
    model = chain(r=Activation(), a=LINEAR)
    traded = offered(model_passes.child_order, plain(model))[-1].model
    assert [c.name for c in traded.children] == ["a", "r"]
    assert traded.nodes == (call("h0", "a", "x"), call("h1", "r", "h0"))


def test_a_flag_right_before_a_forward_is_smaller_than_one_set_elsewhere() -> None:
    before, between, early = (
        replace(plain(), schedule=ops)
        for ops in (
            (Forward(), Backward(), OFF, Forward(), Backward()),
            (Forward(), Backward(), Forward(), OFF, Backward()),
            (Forward(), OFF, Backward(), Forward(), Backward()),
        )
    )
    assert [flag_distance(c) for c in (before, between, early)] == [0, 2, 1]
    assert size_order(before) < min(size_order(between), size_order(early))


def test_the_root_and_a_child_are_a_smaller_plan_than_two_children() -> None:
    case = make_case(chain(a=LINEAR, b=LINEAR), (Forward(),), wrap=groups("a", "b"))
    plans = [[g.modules for g in c.wrap] for c in offered(plan_passes.raise_groups, case)]
    assert [("b",), ("",)] in plans
    assert all(size_order(c) < size_order(case) for c in offered(plan_passes.raise_groups, case))


def test_batches_groups_and_members_are_put_in_order() -> None:
    schedule = (Forward(batch=3), Forward(batch=1))
    wrap = groups(("c", "b"), "a", "")
    case = make_case(chain(a=LINEAR, b=LINEAR, c=LINEAR), schedule, wrap=wrap)
    for edit in reversed(list(plan_passes.numbers(case))):
        case = edit(case)
    assert case.schedule == (Forward(batch=0), Forward(batch=1))
    assert [g.modules for g in case.wrap] == [("a",), ("b", "c"), ("",)]


def test_a_block_that_is_called_twice_is_inlined_twice() -> None:
    model = graph("p = inner(x)", "q = inner(p)", inner=chain(a=LINEAR))
    flat = repaired(model_passes.inlined(plain(model), "inner"))
    assert flat is not None
    assert [n.args for n in flat.model.nodes] == [("x",), ("p_h0",)]
