"""``fully_shard`` of DTensors on the whole mesh: what follows from that for parameters in no
group.
"""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, TWO_STEPS, make_case, skip_if_torch_lacks
from msgspec.structs import replace

from fuzzshard.case.case import Case, Mesh, Optimizer
from fuzzshard.case.options import SPMD
from fuzzshard.parts import ops
from fuzzshard.parts.engines import spec_of
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINE = "spmd"
FLATTENED = SPMD(dp_mesh_dims="flattened")
FOREACH = Optimizer(foreach=True)
HYBRID = Mesh(replicate=2, shard=1)
ZEROED = (FORWARD, BACKWARD, ops.ZeroGrad(set_to_none=False), *TWO_STEPS)

PASSES = {
    "gradients of ignored parameters are zeroed with the others": make_case(
        schedule=ZEROED, ignored=("b",), optimizer=FOREACH
    ),
    "and on another mesh than these": make_case(
        schedule=ZEROED, ignored=("b",), optimizer=FOREACH, mesh=HYBRID, spmd=FLATTENED
    ),
    "a checkpoint, onto a mesh where ignored parameters lie on another one": make_case(
        schedule=(
            *(*TWO_STEPS, ops.SaveState(via="dcp"), ops.CorruptState(how="rebuild", mesh=(2, 1))),
            *(ops.LoadState(), *TWO_STEPS),
        ),
        ignored=("b",),
        optimizer=Optimizer(kind="adam"),
        spmd=FLATTENED,
    ),
    "a divide factor of a sum over both axes": make_case(
        schedule=(ops.SetDivideFactor(factor=1.0), *TWO_STEPS), mesh=HYBRID, spmd=FLATTENED
    ),
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES.keys())
def test_it_trains_to_what_plain_training_does(two_ranks: World, case: Case) -> None:
    case = replace(case, engines=(ENGINE,))
    skip_if_torch_lacks(case)
    verdict = two_ranks.run(case)
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert not verdict.notes


@pytest.mark.parametrize(("dims", "ranks"), [("names", 2), ("flattened", 6), ("replicated", 1)])
def test_gradients_are_reduce_scattered_over_the_axes_to_shard_over(dims: str, ranks: int) -> None:
    case = make_case(mesh=Mesh(replicate=3, shard=2), spmd=SPMD(dp_mesh_dims=dims))
    assert spec_of(ENGINE).shards(case) == ranks


def test_a_model_that_is_built_again_is_on_a_mesh_that_is_sliced_again(two_ranks: World) -> None:
    rebuilt = (ops.SaveState(via="state_dict"), ops.CorruptState(how="rebuild"), ops.LoadState())
    case = make_case(
        schedule=(*rebuilt, FORWARD), mesh=Mesh(shard=2, pipeline=1), engines=(ENGINE,)
    )
    skip_if_torch_lacks(case)
    shown = two_ranks.run(case)
    assert shown.signature == "crash/spmd/ValueError in _init_sharding_spec_spmd"
    assert two_ranks.run(case, mends=("equal_mesh_is_another_mesh",)).status is Status.PASS
