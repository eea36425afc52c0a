"""Pipeline schedules train as plain accumulation does; what they are not run with."""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    BACKWARD,
    ROOT,
    STEP,
    ZERO,
    chain,
    children,
    colwise,
    groups,
    make_case,
    rowwise,
    skip_if_torch_lacks,
)
from msgspec.structs import replace

from fuzzshard.analysis.stages import stages
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Block, Call, TensorOp
from fuzzshard.case.options import DDP, Pipelining
from fuzzshard.engines.registry import not_applicable
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.leaves.running_sum import RunningSum
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import (
    ClipGradNorm,
    CorruptState,
    Forward,
    LoadState,
    Reshard,
    SaveState,
    SetFlag,
    SetMode,
    TakeStateDict,
)
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINE = "pipelining"
MODEL = chain(a=Linear(out=4), r=Activation(), b=Linear(out=3), c=Linear(out=5))
DETACHED = Block(
    children=children(d=Linear(out=5)),
    nodes=(
        TensorOp(name="h0", op="detach", args=("x",)),
        Call(name="h1", module="d", args=("h0",)),
    ),
    outputs=("h1",),
)
PLAIN = Inputs(batch=2, tensors=(TensorSpec(size=5),))


def iterations(microbatches: int, count: int = 2) -> tuple[Op, ...]:
    """So many steps, each with a backward of all its forwards."""
    ops: list[Op] = []
    for first in range(0, count * microbatches, microbatches):
        ops += [Forward(batch=first + i) for i in range(microbatches)]
        ops += [BACKWARD, STEP, ZERO]
    return tuple(ops)


def evaluation(microbatches: int = 2, *, inference: bool = False) -> tuple[Op, ...]:
    """A validation, as a training loop has it."""
    forwards = (Forward(batch=7 + i, grad=False, inference=inference) for i in range(microbatches))
    return SetMode(train=False), *forwards, SetMode(train=True)


NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=on) for on in (False, True))
UNFINALIZED = (NO_SYNC, *iterations(2, 1)[:3], SYNC, *iterations(2, 1))
"""Two iterations, of which the second one finalizes gradients."""


def pipelined(microbatches: int = 2, **fields: Any) -> Case:
    given: dict[str, Any] = {
        "model": MODEL,
        "mesh": Mesh(pipeline=2, shard=1),
        "schedule": iterations(microbatches),
        "inputs": PLAIN,
        "wrap": groups("a", "b", ROOT, reshard=False),
        "engines": (ENGINE,),
    }
    return make_case(**given | fields)


PASSES = {
    "GPipe": pipelined(),
    "1F1B, of Adam": pipelined(
        3, pipelining=Pipelining(schedule_class="1f1b"), optimizer=Optimizer(kind="adam")
    ),
    "interleaved stages that add up": pipelined(
        pipelining=Pipelining(schedule_class="interleaved_1f1b", scale_grads=False)
    ),
    "looped stages on one rank of the axis": pipelined(
        mesh=Mesh(pipeline=1, shard=2), pipelining=Pipelining(schedule_class="looped_bfs")
    ),
    "zero bubble": pipelined(pipelining=Pipelining(schedule_class="interleaved_zero_bubble")),
    "stages that lie as a V": pipelined(
        4,
        mesh=Mesh(pipeline=1, shard=2),
        pipelining=Pipelining(schedule_class="zbv_zero_bubble"),
    ),
    "forwards and backwards that go together": pipelined(
        4,
        model=chain(a=Linear(out=4), b=Linear(out=3), c=Linear(out=5), d=Linear(out=4)),
        pipelining=Pipelining(schedule_class="dual_pipe_v"),
    ),
    "microbatches that are given": pipelined(
        schedule=(*evaluation(), *iterations(2), *evaluation()),
        pipelining=Pipelining(gives_microbatches=True),
    ),
    "an input by keyword": pipelined(
        schedule=(*evaluation(), *iterations(2), *evaluation()),
        pipelining=Pipelining(schedule_class="1f1b", by_keyword=True),
    ),
    "microbatches that are given by keyword": pipelined(
        schedule=(*evaluation(), *iterations(2), *evaluation()),
        pipelining=Pipelining(gives_microbatches=True, by_keyword=True),
    ),
    "microbatches that are given to looped stages": pipelined(
        3, pipelining=Pipelining(schedule_class="looped_bfs", gives_microbatches=True)
    ),
    "losses that a step returns, and no outputs": pipelined(
        schedule=(*iterations(2), *evaluation()), pipelining=Pipelining(returned="losses")
    ),
    "losses and outputs that a step returns": pipelined(
        3, pipelining=Pipelining(schedule_class="interleaved_1f1b", returned="both")
    ),
    "a step that returns nothing": pipelined(
        pipelining=Pipelining(schedule_class="looped_bfs", returned="nothing")
    ),
    "outputs that come along their second dim": pipelined(
        schedule=(*iterations(2), *evaluation()), pipelining=Pipelining(merge_dim=1)
    ),
    "inputs that are split along their last dim": pipelined(
        schedule=(*iterations(2), *evaluation()), pipelining=Pipelining(split_dim=-1)
    ),
    "gradients that are finalized by a later step": pipelined(
        schedule=UNFINALIZED, pipelining=Pipelining(schedule_class="1f1b")
    ),
    "gradients of one stage at a time that are finalized by a later step": pipelined(
        schedule=(*UNFINALIZED, *UNFINALIZED),
        pipelining=Pipelining(
            schedule_class="looped_bfs", max_active_stages=1, defer_reduce_grad_wait=True
        ),
    ),
    "one send at a time": pipelined(
        4,
        pipelining=Pipelining(schedule_class="interleaved_1f1b", max_outstanding_sends=1),
    ),
    "one stage at a time": pipelined(
        4,
        mesh=Mesh(pipeline=1, shard=2),
        pipelining=Pipelining(schedule_class="interleaved_1f1b", max_active_stages=1),
    ),
    "one stage ahead": pipelined(
        pipelining=Pipelining(schedule_class="looped_bfs", unshard_lookahead="one")
    ),
    "more stages ahead on later ranks": pipelined(
        4, pipelining=Pipelining(schedule_class="interleaved_1f1b", unshard_lookahead="auto")
    ),
    "late waits for reductions": pipelined(
        pipelining=Pipelining(schedule_class="looped_bfs", defer_reduce_grad_wait=True)
    ),
    "late receives": pipelined(
        4, pipelining=Pipelining(schedule_class="interleaved_1f1b", defer_pp_recv=True)
    ),
    "statistics of every stage": pipelined(
        model=chain(a=Linear(out=4), m=BatchNorm(), b=Linear(out=3), n=BatchNorm()),
        wrap=groups(ROOT),
    ),
    "tensor parallelism, a DTensor of the last stage": pipelined(
        mesh=Mesh(pipeline=1, shard=1, tensor=2),
        schedule=(*evaluation(), *iterations(2), *evaluation()),
        tensor_parallel=(colwise("c", local_output=False),),
    ),
    "tensor parallelism, a DTensor between stages": pipelined(
        model=chain(a=Linear(out=4), b=Linear(out=3), c=Linear(out=5), d=Linear(out=4)),
        mesh=Mesh(pipeline=1, shard=1, tensor=2),
        wrap=groups(ROOT),
        tensor_parallel=(colwise("a"), rowwise("b")),
        pipelining=Pipelining(schedule_class="looped_bfs"),
    ),
    "evaluations before, between and after iterations": pipelined(
        model=chain(a=Linear(out=4), m=BatchNorm(), b=Linear(out=3), n=BatchNorm()),
        wrap=groups("a", ROOT, reshard=False),
        schedule=(
            *evaluation(),
            *iterations(2, 1),
            *evaluation(inference=True),
            *iterations(2, 1),
            *(Forward(batch=i, grad=False) for i in range(4)),
        ),
    ),
    "the norm of all stages": pipelined(
        schedule=(
            *iterations(2, 1)[:3],
            ClipGradNorm(max_norm=0.1),
            STEP,
            ZERO,
            *iterations(2, 1)[:3],
            ClipGradNorm(max_norm=0.1, norm_type="inf"),
            STEP,
        ),
        pipelining=Pipelining(schedule_class="interleaved_1f1b"),
    ),
    "the norm of a stage without gradients": pipelined(
        model=chain(a=Linear(out=4), r=Activation()),
        wrap=groups(ROOT),
        schedule=(*iterations(2, 1)[:3], ClipGradNorm(max_norm=0.1), STEP),
    ),
    "a checkpoint of all stages": pipelined(
        schedule=(
            *iterations(2, 1),
            SaveState(),
            CorruptState(how="rebuild"),
            LoadState(assign=True),
            *iterations(2, 1),
            TakeStateDict(),
            *iterations(2, 1),
        ),
        optimizer=Optimizer(kind="adam"),
        pipelining=Pipelining(schedule_class="interleaved_1f1b"),
    ),
    "states of stages under DDP": pipelined(
        mesh=Mesh(pipeline=1, shard=2),
        schedule=(
            *iterations(2, 1),
            SaveState(via="state_dict"),
            SaveState(),
            CorruptState(),
            LoadState(),
            TakeStateDict(),
            *iterations(2, 1),
        ),
        pipelining=Pipelining(schedule_class="looped_bfs", replicates=True),
    ),
    "statistics of stages under DDP": pipelined(
        model=chain(a=Linear(out=4), m=BatchNorm(), b=Linear(out=3), n=BatchNorm()),
        mesh=Mesh(pipeline=1, shard=2),
        pipelining=Pipelining(schedule_class="looped_bfs", replicates=True),
    ),
}
ZERO_BUBBLE = Pipelining(schedule_class="interleaved_zero_bubble")
MENDED = {
    "zero_bubble_looks_for_sharded_parameters": pipelined(
        3, wrap=groups("a", "b", "c", ROOT, reshard=True), pipelining=ZERO_BUBBLE
    ),
    "zero_bubble_bypasses_ddp": pipelined(
        model=chain(a=Linear(out=4), b=Linear(out=4), c=Linear(out=3), d=Linear(out=4)),
        mesh=Mesh(pipeline=1, shard=2),
        pipelining=replace(ZERO_BUBBLE, replicates=True),
    ),
    "metadata_inference_assigns_buffers": pipelined(
        model=chain(a=Linear(out=4), m=RunningSum(), b=Linear(out=3), n=RunningSum()),
        wrap=groups(ROOT),
    ),
    "evaluations_clear_gradients": pipelined(
        schedule=(
            *iterations(2, 1)[:3],
            *evaluation(),
            Reshard(),
            ClipGradNorm(max_norm=0.1),
            STEP,
        )
    ),
    "evaluations_divide_gradients": pipelined(
        schedule=(*iterations(2, 1)[:3], *evaluation(), STEP),
        pipelining=Pipelining(replicates=True),
    ),
    "zero_bubble_splits_overlapping_groups": pipelined(
        8,
        model=chain(a=Linear(out=5), b=Linear(out=5), c=Linear(out=5), d=Linear(out=5)),
        ties=(Tie(parameter="d.bias", source="c.bias"),),
        mesh=Mesh(pipeline=1, shard=2),
        wrap=groups(ROOT),
        pipelining=ZERO_BUBBLE,
    ),
    "evaluations_pass_on_gradients": pipelined(
        mesh=Mesh(pipeline=1, shard=2),
        pipelining=Pipelining(schedule_class="zbv_zero_bubble"),
        schedule=(*iterations(2, 1), *evaluation(), Reshard(), *iterations(2, 1)),
    ),
    "late_receives_keep_their_order": pipelined(
        4,
        model=chain(a=Linear(out=4), b=Linear(out=3), c=Linear(out=5), d=Linear(out=4)),
        pipelining=replace(ZERO_BUBBLE, defer_pp_recv=True),
    ),
    "metadata_inference_prepares_ddp": pipelined(
        mesh=Mesh(pipeline=1, shard=2),
        pipelining=Pipelining(replicates=True),
        ddp=DDP(find_unused_parameters=False),
    ),
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES.keys())
def test_a_schedule_trains_as_plain_accumulation_does(two_ranks: World, case: Case) -> None:
    skip_if_torch_lacks(case)
    validate(case, world_size=2)
    verdict = two_ranks.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert not verdict.notes


@pytest.mark.parametrize("mend", MENDED)
def test_a_schedule_does_so_once_a_known_bug_is_mended(two_ranks: World, mend: str) -> None:
    validate(MENDED[mend], world_size=2)
    verdict = two_ranks.run(MENDED[mend], mends=(mend,))
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert not verdict.notes


@pytest.mark.parametrize(
    "case",
    [
        pipelined(schedule=(*iterations(2, 1), *UNFINALIZED[:4], *evaluation(), *UNFINALIZED[4:])),
        pipelined(
            schedule=(*evaluation(), *UNFINALIZED),
            wrap=(replace(*groups(ROOT), communication=("zeros_for_unused",)),),
        ),
    ],
    ids=["gradients", "none"],
)
def test_evaluations_leave_what_is_not_finalized_once_known_bugs_are_mended(
    two_ranks: World, case: Case
) -> None:
    skip_if_torch_lacks(case)
    mends = ("evaluations_clear_gradients", "evaluations_divide_gradients")
    verdict = two_ranks.run(case, mends=mends)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert not verdict.notes


def test_stages_are_cut_evenly_and_lie_as_the_schedule_says() -> None:
    looped = pipelined(pipelining=Pipelining(schedule_class="looped_bfs"))
    assert [(stage.rank, stage.names) for stage in stages(looped)] == [
        (0, ("a",)),
        (1, ("r",)),
        (0, ("b",)),
        (1, ("c",)),
    ]
    bent = replace(looped, pipelining=Pipelining(schedule_class="zbv_zero_bubble"))
    assert [stage.rank for stage in stages(bent)] == [0, 1, 1, 0]


EXCLUDED = (
    (
        "no chain of as many modules",
        pipelined(
            model=chain(a=Linear(out=4), b=Linear(out=5)),
            wrap=groups(ROOT),
            pipelining=Pipelining(schedule_class="looped_bfs"),
        ),
    ),
    (
        "belongs to several stages",
        pipelined(
            model=chain(a=Linear(out=5), b=Linear(out=5)),
            ties=(Tie(parameter="b.bias", source="a.bias"),),
            wrap=groups(ROOT),
        ),
    ),
    ("groups of which fully_shard may", pipelined(wrap=groups(("a", "c"), ROOT))),
    (
        "belongs to several stages",
        pipelined(wrap=(WrapGroup(modules=("a",), forward_prefetch=("c",)), *groups("c", ROOT))),
    ),
    ("belongs to several stages", pipelined(checkpoints=(Checkpoint(module=""),))),
    (
        "a stage detaches what it gets",
        pipelined(model=chain(a=Linear(out=4), b=DETACHED), wrap=groups(ROOT)),
    ),
    (
        "zeros for modules that nobody calls",
        pipelined(
            model=chain(
                a=Block(children=children(unused=Linear(out=5)), nodes=(), outputs=("x",)),
                b=Linear(out=3),
            ),
            wrap=(replace(*groups(ROOT), communication=("zeros_for_unused",)),),
        ),
    ),
    ("does not manage", pipelined(wrap=groups("a", "b"))),
    (
        "an input requires a gradient",
        pipelined(inputs=Inputs(batch=2, tensors=(TensorSpec(size=5, requires_grad=True),))),
    ),
    (
        "different numbers of microbatches",
        pipelined(schedule=(*iterations(2, 1), *iterations(1, 1))),
    ),
    ("of different sizes", pipelined(schedule=(*iterations(2), *evaluation(1)))),
    (
        "none of iterations",
        pipelined(schedule=(Forward(), SetMode(train=False), Forward(batch=1), BACKWARD, STEP)),
    ),
    (
        "none of iterations",
        pipelined(schedule=(Forward(), *(Forward(batch=i, grad=False) for i in (1, 2)), BACKWARD)),
    ),
    (
        "nothing that is optimized",
        pipelined(
            model=chain(a=Linear(out=4), r=Activation()),
            wrap=groups(ROOT),
            schedule=(*iterations(2), SaveState()),
        ),
    ),
    (
        "statistics of a checkpointed batch norm",
        pipelined(
            model=chain(a=Linear(out=4), b=Linear(out=5), c=Linear(out=5), m=BatchNorm()),
            wrap=groups(ROOT),
            checkpoints=(Checkpoint(module="m", implementation="wrapper"),),
            schedule=(*iterations(2), *evaluation()),
        ),
    ),
    (
        "computes with the buffer that it updates",
        pipelined(
            model=chain(a=Linear(out=4), b=Linear(out=5), c=Linear(out=5), m=RunningSum()),
            wrap=groups(ROOT),
            checkpoints=(Checkpoint(module="m", implementation="wrapper"),),
        ),
    ),
    ("of fewer than stages", pipelined(1, pipelining=Pipelining(schedule_class="1f1b"))),
    ("of fewer than stages", pipelined(3, pipelining=Pipelining(schedule_class="dual_pipe_v"))),
    (
        "one active stage",
        pipelined(4, pipelining=Pipelining(schedule_class="dual_pipe_v", max_active_stages=1)),
    ),
    ("each divides all", pipelined(schedule=tuple(op for op in iterations(2) if op != ZERO))),
    (
        "a bound on pending sends",
        pipelined(
            pipelining=Pipelining(
                schedule_class="looped_bfs", max_outstanding_sends=1, defer_pp_recv=True
            )
        ),
    ),
    (
        "DDP's join()",
        pipelined(pipelining=Pipelining(replicates=True), ddp=DDP(join="initial"), wrap=()),
    ),
    ("used or zeroed", pipelined(schedule=(NO_SYNC, *iterations(2)))),
    (
        "does not finalize, in stages under DDP",
        pipelined(schedule=UNFINALIZED, pipelining=Pipelining(replicates=True)),
    ),
    (
        "none of iterations",
        pipelined(schedule=(*UNFINALIZED[:4], Reshard(), *UNFINALIZED[4:])),
    ),
)


@pytest.mark.parametrize(("why", "case"), EXCLUDED)
def test_what_the_documentation_does_not_cover_is_not_run(why: str, case: Case) -> None:
    validate(case, world_size=2)
    excluded = not_applicable(case, ENGINE)
    assert excluded is not None
    assert why in excluded.reason
    assert excluded.source


def test_stages_need_an_axis_to_lie_along() -> None:
    with pytest.raises(InvalidCase, match="along the pipeline axis"):
        validate(pipelined(mesh=Mesh(shard=2)), world_size=2)


def test_schedules_of_one_stage_on_a_rank_bound_no_sends() -> None:
    with pytest.raises(InvalidCase, match="for schedules with several stages on a rank"):
        validate(pipelined(pipelining=Pipelining(max_outstanding_sends=1)), world_size=2)
