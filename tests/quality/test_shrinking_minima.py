"""Stand-ins for real bugs shrink to their one exact minimum, whatever drawn case they start from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from shrinking import (
    failing,
    int_reshard_on_four,
    minimal,
    mixed_group,
    structure,
    tied_in_list_group,
    two_forwards_of_checkpoint,
    uneven_before_another,
    unsynced_then_synced,
)

from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Mesh, TensorSpec, Tie, WrapGroup
from fuzzshard.case.graph import Block, Child, Linear, RawParameter
from fuzzshard.case.schedule import Backward, Forward, SetFlag

ONE = Block(children=(Child(name="raw_parameter0", module=RawParameter()),), nodes=(), outputs=("x",))
TWO = replace(ONE, children=(*ONE.children, Child(name="raw_parameter1", module=RawParameter())))
LINEAR = replace(ONE, children=(Child(name="linear0", module=Linear(out=1)),))

PLAIN = Case(
    seed=0,
    model=ONE,
    inputs=Inputs(batch=1, tensors=(TensorSpec(size=1),)),
    mesh=Mesh(shard=1),
    schedule=(Forward(),),
    engines=("ddp",),
)


def unsync(value: bool) -> SetFlag:
    return SetFlag(flag="requires_gradient_sync", value=value)


MINIMA: dict[Callable[[Case], bool], Case] = {
    lambda case: True: PLAIN,
    lambda case: "fully_shard" in case.engines: replace(PLAIN, engines=("fully_shard",)),
    lambda case: case.mesh.size > 1: replace(PLAIN, mesh=Mesh(shard=2)),
    lambda case: case.mesh.replicate == 2: replace(PLAIN, mesh=Mesh(shard=1, replicate=2)),
    uneven_before_another: replace(PLAIN, model=LINEAR, mesh=Mesh(shard=2), wrap=(WrapGroup(modules=("",)),)),
    mixed_group: replace(
        PLAIN, model=LINEAR, wrap=(WrapGroup(modules=("",)),), freezes=(Freeze(target="linear0.bias"),)
    ),
    unsynced_then_synced: replace(
        PLAIN, schedule=(Forward(), unsync(False), Backward(), Forward(), unsync(True), Backward())
    ),
    tied_in_list_group: replace(
        PLAIN,
        model=TWO,
        wrap=(WrapGroup(modules=("raw_parameter0", "raw_parameter1")),),
        ties=(Tie(parameter="raw_parameter1.weight", source="raw_parameter0.weight"),),
    ),
    int_reshard_on_four: replace(
        PLAIN, mesh=Mesh(shard=4), wrap=(WrapGroup(modules=("",), reshard_after_forward=2),)
    ),
    two_forwards_of_checkpoint: replace(
        PLAIN,
        schedule=(Forward(), Forward(), Backward()),
        wrap=(WrapGroup(modules=("raw_parameter0",)), WrapGroup(modules=("",))),
        checkpoints=(Checkpoint(module="raw_parameter0"),),
    ),
}


@pytest.mark.parametrize(("predicate", "expected"), MINIMA.items())
def test_the_largest_drawn_case_shrinks_to_the_minimum(
    predicate: Callable[[Case], bool], expected: Case
) -> None:
    result = minimal(predicate)
    assert structure(result.case) == structure(expected)
    if predicate is not mixed_group:  # which of a Linear's two parameters is frozen is a matter of luck
        assert result.case == expected


@pytest.mark.parametrize(
    "predicate", [uneven_before_another, unsynced_then_synced, two_forwards_of_checkpoint]
)
def test_eight_starting_cases_shrink_to_one_case(predicate: Callable[[Case], bool]) -> None:
    assert {minimal(predicate, case).case for case in failing(predicate)[:8]} == {MINIMA[predicate]}


@pytest.mark.parametrize("predicate", MINIMA)
def test_a_minimum_takes_fewer_than_150_evaluations(predicate: Callable[[Case], bool]) -> None:
    assert minimal(predicate).evaluations < 150


@pytest.mark.parametrize(("predicate", "expected"), MINIMA.items())
def test_a_minimum_does_not_shrink(predicate: Callable[[Case], bool], expected: Case) -> None:
    assert minimal(predicate, expected).case == expected
