"""Gradients and parameters that are not all DTensors of one mesh, given to torch as one list.

People call ``clip_grad_norm_(model.parameters())`` and step one optimizer of them all. torch
raises there, as https://github.com/huggingface/accelerate/pull/4219 says of clipping, and with a
mend it does what a plain model does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import BACKWARD, FORWARD, ROOT, STEP, TWO_STEPS, ZERO, chain, colwise, groups, make_case
from planting import planting_mend

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Mesh, Optimizer, WrapGroup
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import ClipGradNorm, ClipGradValue, Unscale, ZeroGrad
from fuzzshard.verdict import Status
from fuzzshard.world import World

NORM, LISTS = "norm_of_gradients_on_several_meshes", "lists_mix_meshes"
MIXED_LIST, TWO_MESHES = "got mixed torch.Tensor and DTensor", "must have the same mesh"
ONE_GROUP = {"wrap": groups("a"), "engines": ("fully_shard",)}
PLAN = (colwise("a", output="replicate"),)
IN_PARALLEL = {"mesh": Mesh(shard=1, tensor=2), "tensor_parallel": PLAN}
ON_TWO_MESHES = {**IN_PARALLEL, "engines": ("fully_shard",)}
OF_EXPERTS = {
    "model": chain(a=Linear(out=5), moe=Experts(out=4)),
    "mesh": Mesh(replicate=1, shard=2),
    "wrap": groups("moe", ROOT),
    "engines": ("expert_parallel",),
}


SCALED = (FORWARD, BACKWARD, Unscale(), STEP, ZERO, FORWARD, BACKWARD, STEP)


def clipped(**options: object) -> tuple[object, ...]:
    return FORWARD, BACKWARD, ClipGradNorm(max_norm=0.1, **options), STEP  # type: ignore[arg-type]


RAISE = {
    "plain gradients are clipped": (NORM, MIXED_LIST, make_case(schedule=clipped(), **ONE_GROUP)),
    "plain gradients are clipped by a norm that was taken before": (
        *(NORM, MIXED_LIST),
        make_case(schedule=clipped(apart=True, error_if_nonfinite=True), **ONE_GROUP),
    ),
    "plain gradients are clipped by their largest element": (
        *(NORM, MIXED_LIST),
        make_case(schedule=clipped(norm_type="inf"), **ONE_GROUP),
    ),
    "gradients on two meshes are clipped": (
        *(NORM, TWO_MESHES),
        make_case(schedule=clipped(), **ON_TWO_MESHES),
    ),
    "plain gradients are clipped by value": (
        *(LISTS, MIXED_LIST),
        make_case(schedule=(FORWARD, BACKWARD, ClipGradValue(clip_value=0.01), STEP), **ONE_GROUP),
    ),
    "plain parameters are stepped in lists": (
        *(LISTS, MIXED_LIST),
        make_case(optimizer=Optimizer(foreach=True), **ONE_GROUP),
    ),
    "plain gradients are zeroed in place in lists": (
        *(LISTS, MIXED_LIST),
        make_case(
            schedule=(FORWARD, BACKWARD, ZeroGrad(set_to_none=False), *TWO_STEPS),
            optimizer=Optimizer(foreach=True),
            **ONE_GROUP,
        ),
    ),
    "plain gradients have a scale": (
        *(LISTS, MIXED_LIST),
        make_case(
            schedule=SCALED,
            optimizer=Optimizer(grad_scaler="infinite"),
            **ONE_GROUP,
        ),
    ),
    "averaged parameters on two meshes are stepped in lists": (
        *(LISTS, "on inputs with different meshes"),
        make_case(optimizer=Optimizer(kind="asgd", foreach=True), **ON_TWO_MESHES),
    ),
}


@pytest.mark.parametrize(("mend", "said", "case"), RAISE.values(), ids=RAISE.keys())
def test_torch_raises_until_it_is_mended(
    two_ranks: World, mend: str, said: str, case: Case
) -> None:
    validate(case, world_size=2)
    verdict = two_ranks.run(case)
    assert verdict.status is Status.CRASH
    assert said in verdict.findings[0].observed
    verdict = two_ranks.run(case, mends=(mend,))
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert not verdict.notes


PLANTED = {
    "clips_by_the_norm_of_shards_alone": ("norm", RAISE["plain gradients are clipped"]),
    "steps_lists_without_plain_tensors": (
        "parameter",
        RAISE["plain parameters are stepped in lists"],
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_mended_list_that_is_incomplete_is_found(
    two_ranks: World, tmp_path: Path, fault: str
) -> None:
    oracle, (mend, _, case) = PLANTED[fault]
    verdict = two_ranks.run(case, mends=(mend, str(planting_mend(tmp_path, fault))))
    assert verdict.signature == f"divergence/fully_shard/{oracle}"


PASS = {
    "gradients on two meshes have a scale that makes them overflow": make_case(
        schedule=SCALED, optimizer=Optimizer(grad_scaler="infinite"), **ON_TWO_MESHES
    ),
    "parameters on two meshes are stepped in lists": make_case(
        optimizer=Optimizer(kind="adamw", foreach=True), **ON_TWO_MESHES
    ),
    "gradients of sharded experts are clipped": make_case(schedule=clipped(), **OF_EXPERTS),
    "sharded experts are stepped in lists": make_case(
        optimizer=Optimizer(foreach=True), **OF_EXPERTS
    ),
    "gradients of a group and of one that is offloaded are clipped": make_case(
        schedule=clipped(),
        wrap=(WrapGroup(modules=("a",), offload="unpinned"), *groups(ROOT)),
        engines=("fully_shard",),
    ),
}


@pytest.mark.parametrize("case", PASS.values(), ids=PASS.keys())
def test_torch_takes_other_lists(two_ranks: World, case: Case) -> None:
    validate(case, world_size=2)
    verdict = two_ranks.run(case)
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
