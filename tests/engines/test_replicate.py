"""``replicate`` trains as the plain module does; its reducer is built by the first forward."""

from __future__ import annotations

from typing import Any

import pytest
from cases import AGAIN, BACKWARD, FORWARD, STEP, TWO_STEPS, call, chain, children, make_case

from fuzzshard.case.case import Case, Checkpoint, Freeze, Mesh
from fuzzshard.case.graph import Block
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.ops import Cast, Forward, SetFlag, SetRequiresGrad
from fuzzshard.verdict import Status
from fuzzshard.world import World

NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
UNFREEZE = SetRequiresGrad(target="a", value=True)
UNUSED = Block(
    children=children(a=Linear(out=5), unused=Linear(out=5)),
    nodes=(call("h", "a", "x"),),
    outputs=("h",),
)
METHOD = Block(
    children=children(a=Linear(out=5)), nodes=(call("h", "a", "x"),), outputs=("h",), method="go"
)


def both(model: Block | None = None, schedule: Any = TWO_STEPS, **options: Any) -> Case:
    """A case for composable DDP, with the wrapper as a witness."""
    return make_case(model, schedule, engines=("replicate", "ddp"), **options)


CASES = {
    "two steps": both(),
    "four ranks": both(mesh=4),
    "unused modules": both(UNUSED),
    "buffers": both(chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3))),
    "no_sync": both(schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP)),
    "frozen parameters": both(freezes=(Freeze(target="a"),)),
    "a checkpoint of the root": both(checkpoints=(Checkpoint(module=""),)),
    "a checkpoint wrapper": both(checkpoints=(Checkpoint(module="a", implementation="wrapper"),)),
    "a root with a method of its own": both(METHOD),
    "outputs that enter no loss": both(
        chain(a=Linear(out=5), r=Activation()), schedule=(Forward(outputs=(0,)), BACKWARD, STEP)
    ),
    "a forward without gradients first": both(schedule=(Forward(grad=False), *TWO_STEPS)),
    "slices of a mesh": both(mesh=Mesh(pipeline=2, shard=2)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_replicate_trains_as_the_plain_module_does(four_ranks: World, case: Case) -> None:
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert not verdict.notes


EXCLUDED = {
    "parameters are cast": (FORWARD, BACKWARD, STEP, Cast(dtype="float64"), FORWARD),
    "is unfrozen": (FORWARD, BACKWARD, STEP, UNFREEZE, FORWARD, BACKWARD),
    "does not go through the DDP wrapper": (Forward(target="a"), BACKWARD),
}


@pytest.mark.parametrize("why", EXCLUDED)
def test_the_contract_of_ddp_holds_from_the_first_forward_on(why: str) -> None:
    case = make_case(schedule=EXCLUDED[why], freezes=(Freeze(target="a", after_wrap=True),))
    excluded = not_applicable(case, "replicate")
    assert excluded is not None
    assert why in excluded.reason
