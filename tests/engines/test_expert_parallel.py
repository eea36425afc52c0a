"""Experts that are sharded over the ranks train as a plain mixture does; what they are not run
with.
"""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    ZERO,
    chain,
    float_inputs,
    groups,
    make_case,
)

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    RankBatch,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINE = "expert_parallel"
MIXTURE = Experts(out=4, experts=4)
NO_SYNC, SYNC = (
    ops.SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True)
)


def mixed(mixture: Experts = MIXTURE, **fields: Any) -> Case:
    """A mixture between two linears, on a mesh whose ranks share the experts."""
    given: dict[str, Any] = {
        "model": chain(a=Linear(out=4), moe=mixture, b=Linear(out=3)),
        "mesh": Mesh(replicate=1, shard=2),
        "wrap": groups("moe", "a", ROOT),
        "engines": (ENGINE,),
    }
    return make_case(**given | fields)


PASSES = {
    "small integers, and an expert that gets no row": mixed(
        Experts(out=2, experts=2, idle=True), values="dyadic", inputs=float_inputs(4)
    ),
    "eight experts, of Adam, and a rank without rows": mixed(
        Experts(out=4, experts=8),
        optimizer=Optimizer(kind="adam"),
        inputs=Inputs(
            batch=3,
            seq=2,
            tensors=(TensorSpec(size=5),),
            rank_batches=(RankBatch(rank=1, rows=0),),
        ),
    ),
    "in the group of the root, on a mesh of their own": mixed(wrap=groups("a", ROOT)),
    "in a list group of other shards": mixed(
        wrap=(WrapGroup(modules=("moe", "a"), shard_dim="last"), *groups(ROOT)),
        inputs=float_inputs(4),
    ),
    "microbatches, one of them unsynchronised": mixed(
        schedule=(
            *(NO_SYNC, FORWARD, BACKWARD, SYNC, ops.Forward(batch=1), BACKWARD),
            *(STEP, ZERO, ops.Forward(batch=2), BACKWARD, STEP),
        )
    ),
    "frozen, and what is registered": mixed(
        freezes=(Freeze(target="moe"),),
        schedule=(ops.TakeStateDict(), ops.Unshard(), *TWO_STEPS),
    ),
    "divided by another factor, of experts that all ranks have": mixed(
        mesh=Mesh(replicate=2, shard=1), schedule=(ops.SetDivideFactor(factor=4.0), *TWO_STEPS)
    ),
    "saved and loaded": mixed(schedule=(*TWO_STEPS, ops.SaveState(via="dcp"), ops.LoadState())),
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES.keys())
def test_sharded_experts_train_as_a_plain_mixture_does(two_ranks: World, case: Case) -> None:
    assert_passes(two_ranks, case)


def test_fully_shard_shards_experts_over_the_other_axis(four_ranks: World) -> None:
    """Also along another dim; a divide factor is that of the sum over all ranks."""
    mesh = Mesh(replicate=2, shard=2)
    last = WrapGroup(modules=("moe",), shard_dim="last")
    divided = (ops.SetDivideFactor(factor=8.0), *TWO_STEPS)
    assert_passes(four_ranks, mixed(mesh=mesh, schedule=divided))
    assert_passes(four_ranks, mixed(mesh=mesh, wrap=(last, *groups(ROOT))))
    assert_passes(four_ranks, mixed(mesh=mesh, wrap=groups(ROOT), schedule=divided))


def assert_passes(world: World, case: Case) -> None:
    validate(case, world_size=case.mesh.size)
    verdict = world.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert not verdict.notes


EXCLUDED = (
    (
        "expert_parallel needs an Experts leaf",
        mixed(model=chain(a=Linear(out=4)), wrap=groups(ROOT)),
    ),
    ("a mesh without an axis", mixed(mesh=Mesh(shard=2))),
    ("as many on each rank", mixed(Experts(out=4, experts=3))),
    (
        "experts that are not in a group",  # or that two mixtures share
        mixed(
            model=chain(m=MIXTURE, n=MIXTURE),
            wrap=groups(ROOT),
            inputs=float_inputs(4),
            ties=(Tie(parameter="n.grouped.weight", source="m.grouped.weight"),),
        ),
    ),
    ("not in a group", mixed(ignored=("moe",))),
    ("resharded to a smaller mesh", mixed(wrap=groups("moe", ROOT, reshard=2))),
    (
        "the usual all-gather",
        mixed(wrap=(WrapGroup(modules=("moe",), all_gather_extension="negated"), *groups(ROOT))),
    ),
    (
        "along the dim of their shards",
        mixed(
            mesh=Mesh(replicate=2, shard=1),
            model=chain(moe=Experts(out=3)),
            wrap=(WrapGroup(modules=("moe",), shard_dim="last"), *groups(ROOT)),
        ),
    ),
    ("compilation", mixed(compile="eager")),
    ("a GradScaler", mixed(optimizer=Optimizer(grad_scaler="finite"))),
    (
        "a flag of meshes with two axes",
        mixed(schedule=(ops.SetFlag(flag="requires_all_reduce", value=False), *TWO_STEPS)),
    ),
)


@pytest.mark.parametrize(("why", "case"), EXCLUDED)
def test_what_nobody_documents_is_not_run(why: str, case: Case) -> None:
    validate(case, world_size=2)
    excluded = not_applicable(case, ENGINE)
    assert excluded is not None
    assert why in excluded.reason
    assert excluded.source
