"""Stand-ins for real bugs shrink to their one exact minimum, whatever drawn case they start
from.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from shrinking import (
    failing,
    int_reshard_on_four,
    minimal,
    mixed_group,
    several_groups,
    structure,
    three_batches,
    tied_in_list_group,
    two_forwards_of_checkpoint,
    uneven_before_another,
    unsynced_then_synced,
    unused_module,
)

from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Mesh, TensorSpec, Tie, WrapGroup
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, SetFlag


def linears(count: int = 1, *, out: int = 2, bias: bool = False) -> Block:
    """``count`` Linears in sequence."""
    values = ["x", *(f"h{i}" for i in range(count))]
    return Block(
        children=tuple(
            Child(name=f"linear{i}", module=Linear(out=out, bias=bias)) for i in range(count)
        ),
        nodes=tuple(
            Call(name=f"h{i}", module=f"linear{i}", args=(values[i],)) for i in range(count)
        ),
        outputs=(values[-1],),
    )


def inputs(width: int) -> Inputs:
    return Inputs(batch=1, tensors=(TensorSpec(size=width),))


PLAIN = Case(
    seed=0,
    model=linears(),
    inputs=inputs(2),
    mesh=Mesh(shard=2),
    schedule=(Forward(),),
    engines=("ddp",),
)
"""What is left of any case when nothing matters: a square Linear, called, sharded evenly over two
ranks.
"""

ROOT = WrapGroup(modules=("",))


def unsync(value: bool) -> SetFlag:
    return SetFlag(flag="requires_gradient_sync", value=value)


MINIMA: dict[Callable[[Case], bool], Case] = {
    lambda case: True: PLAIN,
    lambda case: "fully_shard" in case.engines: replace(PLAIN, engines=("fully_shard",)),
    # Two ranks say more than one, where torch skips collectives, and more ranks say nothing more.
    lambda case: case.mesh.size > 1: PLAIN,
    # A shard axis of one rank divides every width.
    lambda case: case.mesh.replicate == 2: replace(
        PLAIN, mesh=Mesh(shard=1, replicate=2), model=linears(out=1), inputs=inputs(1)
    ),
    # Only the width that must be uneven is: the input keeps its 2.
    uneven_before_another: replace(PLAIN, model=linears(out=1, bias=True), wrap=(ROOT,)),
    # One Linear with a bias has fewer modules than two without.
    mixed_group: replace(
        PLAIN, model=linears(bias=True), wrap=(ROOT,), freezes=(Freeze(target="linear0.bias"),)
    ),
    # Each flag is set right before the forward that it is about.
    unsynced_then_synced: replace(
        PLAIN, schedule=(unsync(False), Forward(), Backward(), unsync(True), Forward(), Backward())
    ),
    # Both modules are called, one after another, and the list is in registration order.
    tied_in_list_group: replace(
        PLAIN,
        model=linears(2),
        wrap=(WrapGroup(modules=("linear0", "linear1")),),
        ties=(Tie(parameter="linear1.weight", source="linear0.weight"),),
    ),
    # Four ranks shard a width of four evenly.
    int_reshard_on_four: replace(
        PLAIN,
        mesh=Mesh(shard=4),
        model=linears(out=4),
        inputs=inputs(4),
        wrap=(replace(ROOT, reshard_after_forward=2),),
    ),
    # The plain plan: a child, then the root.
    two_forwards_of_checkpoint: replace(
        PLAIN,
        schedule=(Forward(), Forward(), Backward()),
        wrap=(WrapGroup(modules=("linear0",)), ROOT),
        checkpoints=(Checkpoint(module="linear0", implementation="utils"),),
    ),
    # Two groups: again the root and a child, although two children would do.
    several_groups: replace(PLAIN, wrap=(WrapGroup(modules=("linear0",)), ROOT)),
    # Batches are numbered in order of use.
    three_batches: replace(PLAIN, schedule=tuple(Forward(batch=i) for i in range(3))),
    # A module that must stay uncalled does.
    unused_module: replace(PLAIN, model=replace(linears(), nodes=(), outputs=("x",))),
}


def with_ddp(case: Case) -> Case:
    """``case`` for the one engine of the minima: which engine is left depends on those it was
    drawn with.
    """
    return replace(case, engines=PLAIN.engines)


@pytest.mark.slow
@pytest.mark.parametrize(("predicate", "expected"), MINIMA.items())
def test_the_largest_drawn_case_shrinks_to_the_minimum(
    predicate: Callable[[Case], bool], expected: Case
) -> None:
    result = minimal(predicate)
    assert structure(result.case) == structure(expected)
    if (
        predicate is not mixed_group
    ):  # which of a Linear's two parameters is frozen is a matter of luck
        luck = (
            expected.engines == PLAIN.engines
        )  # of the engines that the largest case was drawn with
        assert (with_ddp(result.case) if luck else result.case) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "predicate", [uneven_before_another, unsynced_then_synced, two_forwards_of_checkpoint]
)
def test_eight_starting_cases_on_several_ranks_shrink_to_one_case(
    predicate: Callable[[Case], bool],
) -> None:
    starts = [case for case in failing(predicate) if case.mesh.size > 1][:8]
    assert {with_ddp(minimal(predicate, case).case) for case in starts} == {MINIMA[predicate]}


def test_a_case_found_on_one_rank_stays_there() -> None:
    start = next(case for case in failing(mixed_group) if case.mesh.size == 1)
    assert minimal(mixed_group, start).case.mesh == Mesh(shard=1)


def test_a_failure_of_one_rank_only_shrinks_to_one_rank() -> None:
    one_shard = minimal(lambda case: case.mesh.shard == 1).case
    assert one_shard.mesh == Mesh(shard=1)


@pytest.mark.parametrize("predicate", MINIMA)
def test_a_minimum_takes_fewer_than_150_evaluations(predicate: Callable[[Case], bool]) -> None:
    assert minimal(predicate).evaluations < 150


@pytest.mark.parametrize(("predicate", "expected"), MINIMA.items())
def test_a_minimum_does_not_shrink(predicate: Callable[[Case], bool], expected: Case) -> None:
    assert minimal(predicate, expected).case == expected
