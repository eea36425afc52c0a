"""Which ops that save and load state make a case."""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, STEP, ZERO, chain, float_inputs, groups, make_case
from msgspec.structs import replace

from fuzzshard.analysis.validate import is_valid, validate
from fuzzshard.case.case import Optimizer, Tie, WrapGroup
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Cast, CorruptState, LoadState, SaveState, SetFlag, SetRequiresGrad

ADAM = Optimizer(kind="adam")
TRAIN: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO)
IN_MEMORY, ON_DISK = SaveState(via="state_dict"), SaveState(via="dcp")
REBUILT, LOAD, ASSIGN = CorruptState(how="rebuild"), LoadState(), LoadState(assign=True)
MOVED = CorruptState(how="rebuild", mesh=(2, 1))
FROZEN = SetRequiresGrad(target="a", value=False)

REFUSED: dict[str, tuple[tuple[Op, ...], str]] = {
    "nothing saved": ((*TRAIN, LOAD), "before any was saved"),
    "nothing to corrupt": ((REBUILT, *TRAIN, IN_MEMORY), "before any was saved"),
    "saved before a cast": (
        (*TRAIN, IN_MEMORY, Cast(dtype="float64"), LOAD),
        "before any was saved",
    ),
    "zeroed on another mesh": (
        (*TRAIN, ON_DISK, replace(MOVED, how="zero"), LOAD),
        "zeroed parameters on another mesh",
    ),
    "a mesh of other ranks": (
        (*TRAIN, ON_DISK, replace(MOVED, mesh=(2, 2)), LOAD),
        r"\[2, 2\] is no mesh of the 2 data-parallel ranks",
    ),
    "copies of another mesh": (
        (*TRAIN, IN_MEMORY, MOVED, LOAD),
        "copied state dicts are loaded on another mesh",
    ),
    "frozen on some ranks": (
        (*TRAIN, ON_DISK, SetRequiresGrad(target="a", value=False, ranks="others")),
        "only some ranks freeze",
    ),
}


@pytest.mark.parametrize(("schedule", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_states_that_would_be_lost_are_no_case(schedule: tuple[Op, ...], reason: str) -> None:
    with pytest.raises(InvalidCase, match=reason):
        validate(make_case(schedule=(*schedule, *TRAIN), optimizer=ADAM))


@pytest.mark.parametrize(
    "schedule",
    [
        (IN_MEMORY, *TRAIN, LOAD),
        (ON_DISK, *TRAIN, LOAD),
        (FORWARD, BACKWARD, ON_DISK, STEP, LOAD),
        (*TRAIN, ON_DISK, FROZEN, LOAD),
        (*TRAIN, FROZEN, ON_DISK, REBUILT, LOAD),
        (*TRAIN, ON_DISK, REBUILT, FORWARD, BACKWARD, LOAD),
        (*TRAIN, ON_DISK, REBUILT, FORWARD, BACKWARD, ZERO, LOAD),
        (*TRAIN, ON_DISK, REBUILT, *TRAIN, LOAD, ON_DISK),
        (*TRAIN, ON_DISK, MOVED, IN_MEMORY, REBUILT, LOAD),
    ],
)
def test_other_orders_are_cases(schedule: tuple[Op, ...]) -> None:
    validate(make_case(schedule=(*schedule, *TRAIN), optimizer=ADAM))


def test_options_are_for_the_other_mesh_too() -> None:
    schedule = (*TRAIN, ON_DISK, MOVED, LOAD, *TRAIN)
    halved = (WrapGroup(modules=("",), reshard_after_forward=2),)
    assert is_valid(make_case(schedule=(*TRAIN, ON_DISK, LOAD), wrap=halved))
    with pytest.raises(InvalidCase, match="does not divide the shard axis of size 1"):
        validate(make_case(schedule=schedule, wrap=halved))
    partial = (SetFlag(flag="requires_all_reduce", value=False), *schedule)
    case = make_case(schedule=partial, wrap=groups(""), finalize="wait")
    with pytest.raises(InvalidCase, match="Partial gradient reduction"):
        validate(case)


def test_a_checkpoint_has_no_room_for_statistics_of_every_rank() -> None:
    model = chain(a=Linear(out=4), n=BatchNorm())
    validate(make_case(model, (*TRAIN, IN_MEMORY, LOAD)))
    with pytest.raises(InvalidCase, match="one copy of a buffer"):
        validate(make_case(model, (*TRAIN, ON_DISK, LOAD)))


def test_masks_of_every_rank_make_statistics_of_every_rank() -> None:
    inputs = replace(float_inputs(), same_on_ranks=True)
    validate(make_case(chain(n=BatchNorm()), (*TRAIN, ON_DISK, LOAD), inputs=inputs))
    with pytest.raises(InvalidCase, match="one copy of a buffer"):
        validate(
            make_case(chain(d=Dropout(), n=BatchNorm()), (*TRAIN, ON_DISK, LOAD), inputs=inputs)
        )


def test_assigning_would_untie_parameters() -> None:
    ties = (Tie(parameter="b.weight", source="a.weight"),)
    model = chain(a=Linear(out=5), b=Linear(out=5))
    validate(make_case(model, (*TRAIN, IN_MEMORY, LOAD), ties=ties))
    with pytest.raises(InvalidCase, match="unties"):
        validate(make_case(model, (*TRAIN, IN_MEMORY, ASSIGN), ties=ties))
