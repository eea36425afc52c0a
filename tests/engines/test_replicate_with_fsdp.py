"""``replicate`` on the machinery of ``fully_shard``: what it trains, and what it is not told."""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    chain,
    colwise,
    float_inputs,
    groups,
    rowwise,
    skip_if_torch_lacks,
)
from cases import make_case as make_any_case
from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Mesh, Optimizer, RankBatch, Tie, WrapGroup
from fuzzshard.case.options import Precision
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm, LayerNorm
from fuzzshard.program.engine_script import engine_script
from fuzzshard.program.mesh import MeshNames
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINE = "replicate_with_fsdp"
ADAM = Optimizer(kind="adam", weight_decay=0.125)
HALF = Precision(param="bfloat16", reduce="float32")
HYBRID = Mesh(replicate=2, shard=2)
SQUARE = Mesh(shard=2, tensor=2)
NO_SYNC, SYNC = (
    ops.SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True)
)
KEEP, ALL_REDUCE = (
    ops.SetFlag(flag="requires_all_reduce", value=value) for value in (False, True)
)
STAYS = ops.SetFlag(flag="reshard_after_backward", value=False)


def make_case(*given: Any, told: dict[str, Any] | None = None, **options: Any) -> Case:
    """A case with whole groups that are ``told`` something, for this engine alone."""
    options.setdefault("wrap", groups("a", "b", ROOT))
    wrap = (replace(g, reshard_after_forward=False, **(told or {})) for g in options.pop("wrap"))
    options.setdefault("engines", (ENGINE,))
    return make_any_case(*given, wrap=tuple(wrap), **options)


PASSES = {
    "two steps": make_case(optimizer=ADAM, engines=(ENGINE, "fully_shard", "ddp")),
    "all axes of a hybrid mesh as one": make_case(mesh=HYBRID, optimizer=ADAM),
    "two backwards, of which the second one reduces": make_case(
        schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP)
    ),
    "two backwards, of which the second one all-reduces": make_case(
        schedule=(KEEP, FORWARD, BACKWARD, ALL_REDUCE, AGAIN, BACKWARD, STEP), mesh=HYBRID
    ),
    "parameters that stay after backward": make_case(
        schedule=(STAYS, FORWARD, BACKWARD, ops.Reshard(), STEP, AGAIN, BACKWARD)
    ),
    "gathered and sharded by hand": make_case(
        schedule=(ops.Unshard(), FORWARD, BACKWARD, STEP, ops.Unshard(async_op=True), *TWO_STEPS)
    ),
    "one group of two modules, whose parameters are tied": make_case(
        chain(a=Linear(out=5), b=Linear(out=5)),
        wrap=groups(("a", "b"), ROOT),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
    ),
    "a frozen module, hooks of users, and a parameter that is ignored": make_case(
        schedule=(
            ops.RegisterParameterHook(hook="post_accumulate_grad_hook", target="b.bias"),
            *TWO_STEPS,
        ),
        freezes=(Freeze(target="a.weight"),),
        ignored=("a.bias",),
    ),
    "mixed precision": make_case(told={"precision": HALF}, optimizer=ADAM),
    "parameters on the host": make_case(told={"offload": "unpinned"}, optimizer=ADAM),
    "parameters that are negated on the way": make_case(told={"all_gather_extension": "negated"}),
    "prefetching": make_case(
        wrap=(
            WrapGroup(modules=("a",), forward_prefetch=("b",)),
            WrapGroup(modules=("b",), backward_prefetch=("a",)),
            WrapGroup(modules=(ROOT,)),
        )
    ),
    "what it is told of its communication": make_case(
        told={
            "communication": ("sum", "two_buffers", "hook", "custom_gather", "custom_scatter"),
        },
    ),
    "gradients that are divided by another factor": make_case(
        schedule=(ops.SetDivideFactor(factor=4.0), *TWO_STEPS)
    ),
    "tensor parallelism": make_case(
        mesh=SQUARE, tensor_parallel=(colwise("a"), rowwise("b")), optimizer=ADAM
    ),
    "a checkpoint, onto fewer axes": make_case(
        schedule=(
            *(*TWO_STEPS, ops.SaveState(via="dcp"), ops.CorruptState(how="rebuild", mesh=(4,))),
            *(ops.LoadState(), *TWO_STEPS),
        ),
        optimizer=ADAM,
        mesh=HYBRID,
    ),
    "an exception": make_case(
        schedule=(FORWARD, BACKWARD, STEP, ops.Abort(target="a", during="backward"), *TWO_STEPS)
    ),
    "the meta device, statistics of batches, and a graph": make_case(
        chain(a=Linear(out=5), n=BatchNorm(), b=Linear(out=3)), init="meta", compile="aot_eager"
    ),
    "a backward that is finalized by hand": make_case(finalize="async"),
    "a rank without rows": make_case(
        chain(a=Linear(out=5), n=LayerNorm(), b=Linear(out=3)),
        inputs=replace(float_inputs(), rank_batches=(RankBatch(rank=0, rows=0),)),
    ),
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES.keys())
def test_it_trains_to_what_plain_training_does(four_ranks: World, case: Case) -> None:
    skip_if_torch_lacks(case)
    verdict = four_ranks.run(case)
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert ENGINE not in verdict.notes


EXCLUDED: dict[str, tuple[Case, str]] = {
    "groups that are sharded after forward": (
        make_any_case(),
        "resharded after forward",
    ),
    "groups that are to be sharded after forward": (
        make_case(schedule=(ops.SetFlag(flag="reshard_after_forward", value=True), *TWO_STEPS)),
        "resharded after forward",
    ),
    "another dim": (make_case(told={"shard_dim": "last"}, mesh=1), "a dim that is sharded"),
    "a process group of its own": (
        make_case(told={"communication": ("separate_group",)}),
        "which it has none of",
    ),
    "a flag that fully_shard ignores on one axis": (
        make_case(schedule=(KEEP, FORWARD, BACKWARD, ALL_REDUCE)),
        "turns off every reduction",
    ),
}


@pytest.mark.parametrize(("case", "why"), EXCLUDED.values(), ids=EXCLUDED.keys())
def test_what_only_shards_have_is_excluded(case: Case, why: str) -> None:
    excluded = not_applicable(case, ENGINE)
    assert excluded is not None
    assert why in excluded.reason
    assert not_applicable(case, "fully_shard") is None


def test_a_script_says_nothing_of_shards() -> None:
    case = make_case(mesh=HYBRID, wrap=groups(ROOT), told={"offload": "unpinned"})
    lines = engine_script(ENGINE).wrap_lines(case, "model", "model", MeshNames(case))
    text = "".join(line.strip() for line in lines)
    assert text == (
        'replicate_with_fsdp(model, mesh=mesh._flatten("data"), '
        "offload_policy=CPUOffloadPolicy(pin_memory=False))"
    )
