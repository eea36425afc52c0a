"""Attention over ranks that share positions trains as attention of one rank does; what it is not
run with.
"""

from __future__ import annotations

from typing import Any

import pytest
from cases import BACKWARD, FORWARD, ROOT, STEP, TWO_STEPS, ZERO, chain, groups, make_case

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    RankBatch,
    TensorSpec,
    WrapGroup,
)
from fuzzshard.case.options import ContextParallel, Precision
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts.leaves.attention import FusedAttention
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import ClipGradNorm, Forward, LoadState, SaveState, SetFlag
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINE = "context_parallel"
HALF = Precision(param="bfloat16", reduce="float32")
NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
IN_ORDER = ContextParallel(load_balance=False)
RING = ContextParallel(rotate_method="alltoall")


def inputs_of(seq: int, **fields: Any) -> Inputs:
    return Inputs(batch=2, seq=seq, tensors=(TensorSpec(size=5),), **fields)


def attending(attention: FusedAttention | None = None, **fields: Any) -> Case:
    """Attention between two linears."""
    given: dict[str, Any] = {
        "model": chain(
            a=Linear(out=4), sdpa=attention or FusedAttention(heads=2), b=Linear(out=3)
        ),
        "inputs": inputs_of(4),
        "mesh": Mesh(shard=2),
        "wrap": groups("sdpa", ROOT),
        "engines": (ENGINE,),
        "schedule": TWO_STEPS,
    }
    return make_case(**given | fields)


PASSES = {
    "balanced": attending(),
    "in order, of positions for each rank": attending(
        inputs=inputs_of(6), context_parallel=IN_ORDER
    ),
    "from rank to rank, of Adam": attending(
        context_parallel=RING, optimizer=Optimizer(kind="adam"), inputs=inputs_of(8)
    ),
    "in float64": attending(dtype="float64"),
    "in half precision": attending(
        wrap=tuple(WrapGroup(modules=(m,), precision=HALF) for m in ("sdpa", ROOT))
    ),
    "of a batch that is larger on one rank": attending(
        inputs=inputs_of(4, rank_batches=(RankBatch(rank=1, rows=3),))
    ),
    "of a rank without rows": attending(
        inputs=inputs_of(4, rank_batches=(RankBatch(rank=1, rows=0),))
    ),
    "microbatches, one of them unsynchronised, and clipping": attending(
        schedule=(
            *(NO_SYNC, FORWARD, BACKWARD, SYNC, Forward(batch=1), BACKWARD),
            *(ClipGradNorm(max_norm=0.5), STEP, ZERO, Forward(batch=2), BACKWARD, STEP),
        )
    ),
    "frozen, checkpointed, beside a dropout": attending(
        model=chain(a=Linear(out=4), sdpa=FusedAttention(), d=Dropout(), b=Linear(out=3)),
        freezes=(Freeze(target="sdpa.qkv"),),
        checkpoints=(Checkpoint(module="sdpa"),),
    ),
    "on the meta device": attending(init="meta"),
    "of one rank": attending(mesh=Mesh(shard=1)),
    "saved and loaded": attending(schedule=(*TWO_STEPS, SaveState(via="dcp"), LoadState())),
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES.keys())
def test_attention_of_shared_positions_trains_as_attention_of_one_rank_does(
    two_ranks: World, case: Case
) -> None:
    assert_passes(two_ranks, case)


@pytest.mark.parametrize("options", [ContextParallel(), IN_ORDER, RING])
def test_positions_are_shared_over_the_shard_axis(
    four_ranks: World, options: ContextParallel
) -> None:
    for mesh in (Mesh(shard=4), Mesh(replicate=2, shard=2)):
        case = attending(mesh=mesh, inputs=inputs_of(8), context_parallel=options)
        assert_passes(four_ranks, case)


def assert_passes(world: World, case: Case) -> None:
    validate(case, world_size=case.mesh.size)
    verdict = world.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert not verdict.notes


EXCLUDED = {
    "no module calls": attending(model=chain(a=Linear(out=4)), wrap=groups(ROOT)),
    "cannot have as many each": attending(inputs=inputs_of(6)),
    "none of them has rows": attending(
        inputs=inputs_of(4, rank_batches=tuple(RankBatch(rank=r, rows=0) for r in (0, 1)))
    ),
    "compilation": attending(compile="eager"),
}


@pytest.mark.parametrize("why", EXCLUDED)
def test_what_nobody_documents_is_not_run(why: str) -> None:
    validate(EXCLUDED[why], world_size=2)
    excluded = not_applicable(EXCLUDED[why], ENGINE)
    assert excluded is not None
    assert why in excluded.reason
    assert excluded.source
