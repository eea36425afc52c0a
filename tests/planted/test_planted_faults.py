"""Every oracle finds the fault that was planted for it, and names the culprit and the op where it
began.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import cases
import msgspec
import pytest
from cases import (
    ADAPTED,
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    ZERO,
    call,
    chain,
    children,
    colwise,
    float_inputs,
    groups,
    rowwise,
)
from mend_files import planting_file
from upstream import exec_order

from fuzzshard.case.case import (
    Case,
    Checkpoint,
    EngineName,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    RankBatch,
    TensorSpec,
    WrapGroup,
)
from fuzzshard.case.graph import Block
from fuzzshard.case.options import DDP, FSDP1, Precision, TensorParallel
from fuzzshard.parts.leaves.attention import FusedAttention
from fuzzshard.parts.leaves.constant import Constant
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.lstm import LSTM
from fuzzshard.parts.leaves.norms import BatchNorm, GroupNorm, LayerNorm
from fuzzshard.parts.leaves.weight_norm import WeightNorm
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import (
    Abort,
    AddParamGroup,
    Backward,
    ClipGradNorm,
    ClipGradValue,
    CorruptState,
    Forward,
    LoadState,
    RegisterHook,
    RegisterParameterHook,
    RegisterStepHook,
    Reshard,
    RunningAverage,
    SaveState,
    SetDivideFactor,
    SetFlag,
    SetGradDtype,
    TakeStateDict,
    Unscale,
    Unshard,
    WaitForSave,
)
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.world import SLOW_STACK_SECONDS

FAULTS = Path(__file__).parent / "faults"
FORWARD_AT, BACKWARD_AT, STEP_AT = 0, 1, 2
ONE_STEP = (FORWARD, BACKWARD, STEP)
BEFORE_THE_FIRST_OP = -1


def make_case(
    model: Block | None = None, schedule: tuple[Op, ...] = ONE_STEP, **options: Any
) -> Case:
    """A case of one step, unless told else: most faults show in it."""
    return cases.make_case(model, schedule, **options)


@dataclasses.dataclass(frozen=True)
class Planted:
    """What a fault must look like on a case that triggers it."""

    case: Case
    signature: str
    op: int
    name: str = ""
    rung: str = "bounded"
    status: Status = Status.DIVERGENCE


WITH_BUFFERS = chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3))
FROZEN = (Freeze(target="a"),)
ATTENDING = make_case(
    chain(sdpa=FusedAttention(), b=Linear(out=3)),
    inputs=Inputs(batch=2, seq=4, tensors=(TensorSpec(size=4),)),
    wrap=groups("sdpa", ROOT),
    engines=("context_parallel", "fully_shard"),
)
SHORT_ON_ONE_RANK = msgspec.structs.replace(
    float_inputs(), rank_batches=(RankBatch(rank=1, rows=1),)
)
PLAIN = Inputs(batch=2, tensors=(TensorSpec(size=5),))
EXACT = make_case(
    chain(a=Linear(out=4), b=Linear(out=2)),
    (FORWARD, BACKWARD, STEP),
    mesh=4,
    values="dyadic",
    inputs=float_inputs(4),
)
PARTLY_USED = Block(
    children=children(a=Linear(out=5), c=Linear(out=3)),
    nodes=(call("h", "a", "x"), call("z", "c", "h")),
    outputs=("h", "z"),
    returns="tuple",
)
NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
KEEP, ALL_REDUCE = (SetFlag(flag="requires_all_reduce", value=value) for value in (False, True))
DIVERGED = "divergence/fully_shard"


def in_stages(*schedule: Op) -> Case:
    """A pipeline of two stages, each on a rank of its own."""
    mesh, wrap = Mesh(pipeline=2, shard=1), groups(ROOT)
    return make_case(
        schedule=schedule, mesh=mesh, inputs=PLAIN, wrap=wrap, engines=("pipelining",)
    )


UNTAPED = (Forward(grad=False), Forward(batch=1, grad=False))

ADAM = Optimizer(kind="adam")
HOOKED = RegisterParameterHook(hook="post_accumulate_grad_hook", target="a.bias")
STEPPING = RegisterParameterHook(hook="step_in_backward", scale=0.125, target="a.bias")
MUON = Optimizer(kind="muon", exclude=("a.bias", "b.bias"))
BESIDE = msgspec.structs.replace(MUON, beside="adamw")
HALVED = Optimizer(lr_scheduler="step_lr")
AGAIN_AT = TWO_STEPS.index(AGAIN)
LOAD_AT = 6


def resuming(via: Literal["dcp", "state_dict"], how: Literal["zero", "rebuild"]) -> tuple[Op, ...]:
    """Saves after a step, corrupts and loads at once."""
    between = (SaveState(via=via), CorruptState(how=how), LoadState())
    return (FORWARD, BACKWARD, STEP, ZERO, *between, AGAIN, BACKWARD, STEP)


ON_SHARDS = (CorruptState(how="rebuild", mesh=(2,)), LoadState())
BY_FSDP1 = make_case(engines=("fsdp1",))


def in_precision(precision: Precision, **options: Any) -> Case:
    """Two wrapped linears under one policy of mixed precision."""
    wrap = tuple(
        msgspec.structs.replace(group, precision=precision) for group in groups("a", "b", ROOT)
    )
    return make_case(wrap=wrap, **options)


IN_PARALLEL = make_case(mesh=Mesh(shard=1, tensor=2), tensor_parallel=(colwise("a"), rowwise("b")))
SEQUENCE_PARALLEL = make_case(
    chain(a=Linear(out=4), n=LayerNorm(), b=Linear(out=3)),
    mesh=Mesh(shard=1, tensor=2),
    inputs=float_inputs(seq=4),
    tensor_parallel=(
        rowwise("a", input="replicate", output="sequence"),
        TensorParallel(module="n", style="sequence"),
        colwise("b", input="sequence", output="replicate"),
    ),
)

DIVERGENCES = {
    "wrong_output": Planted(make_case(), f"{DIVERGED}/output", FORWARD_AT, "output 0 of the root"),
    "group_norm_ignores_groups": Planted(
        make_case(chain(a=Linear(out=4), n=GroupNorm(groups=2)), ONE_STEP, wrap=groups("n", ROOT)),
        f"{DIVERGED}/output",
        FORWARD_AT,
        "output 0 of the root",
    ),
    "lstm_weights_are_copies": Planted(
        make_case(
            chain(b=Linear(out=4), a=LSTM(out=4)),
            ONE_STEP,
            wrap=groups(ROOT),
            inputs=float_inputs(seq=3),
        ),
        f"{DIVERGED}/gradient/missing",
        BACKWARD_AT,
        "a.lstm.bias_hh_l0",
    ),
    "weight_norm_is_doubled": Planted(
        make_case(chain(a=WeightNorm(out=4)), ONE_STEP, wrap=groups(ROOT)),
        f"{DIVERGED}/output",
        FORWARD_AT,
        "output 0 of the root",
    ),
    "wrong_input_gradient": Planted(
        make_case(wrap=groups(ROOT)),
        f"{DIVERGED}/input_gradient",
        BACKWARD_AT,
        "input 0 of batch 0",
    ),
    "wrong_gradient": Planted(make_case(), f"{DIVERGED}/gradient", BACKWARD_AT, "a.bias"),
    "frozen_matrices_take_gradients": Planted(
        make_case(ADAPTED, wrap=groups("a", ROOT), freezes=(Freeze(target="a.base"),)),
        f"{DIVERGED}/gradient/missing",
        BACKWARD_AT,
        "a.down.weight",
    ),
    "freezes_added_modules": Planted(
        make_case(
            ADAPTED, wrap=groups("a", ROOT), ignored=("a.down", "a.up"), ignored_by="adding"
        ),
        f"{DIVERGED}/registration",
        FORWARD_AT,
        "a.down.weight",
        "invariant",
    ),
    "weights_by_rows": Planted(
        make_case(inputs=SHORT_ON_ONE_RANK), f"{DIVERGED}/gradient", BACKWARD_AT, "a.bias"
    ),
    "weights_by_own_tokens": Planted(
        make_case(loss="token_mean"), f"{DIVERGED}/gradient", BACKWARD_AT, "b.bias"
    ),
    "drops_hooks_of_users": Planted(
        make_case(schedule=(RegisterHook(hook="forward_hook", target="a"), *ONE_STEP)),
        f"{DIVERGED}/output",
        FORWARD_AT + 1,
        "output 0 of the root",
    ),
    "forgets_grad_dtypes": Planted(
        make_case(schedule=(SetGradDtype(target="a", dtype="float64"), *ONE_STEP)),
        f"{DIVERGED}/gradient",
        BACKWARD_AT + 1,
        "a.bias",
    ),
    "average_of_shards_stays": Planted(
        make_case(schedule=(RunningAverage(), *ONE_STEP, RunningAverage(copied=True))),
        f"{DIVERGED}/parameter",
        STEP_AT + 2,
        "a.bias",
    ),
    "drops_hooks_of_outputs": Planted(
        make_case(schedule=(RegisterHook(hook="output_hook", target="b"), *ONE_STEP)),
        f"{DIVERGED}/input_gradient",
        BACKWARD_AT + 1,
        "input 0 of batch 0",
    ),
    "drops_hooks_of_parameters": Planted(
        make_case(schedule=(HOOKED, *ONE_STEP)), f"{DIVERGED}/gradient", BACKWARD_AT + 1, "a.bias"
    ),
    "restores_cleared_gradients": Planted(
        make_case(schedule=(STEPPING, *ONE_STEP)),
        f"{DIVERGED}/gradient/unexpected",
        BACKWARD_AT + 1,
        "a.bias",
    ),
    "drops_hooks_of_optimizers": Planted(
        make_case(
            engines=("zero_redundancy",),
            schedule=(RegisterStepHook(hook="step_post_hook"), *ONE_STEP),
        ),
        "divergence/zero_redundancy/parameter",
        STEP_AT + 1,
        "a.bias",
    ),
    "steps_added_groups_with_the_first_rate": Planted(
        make_case(
            schedule=(AddParamGroup(target="a", rate=0.25), *ONE_STEP),
            optimizer=Optimizer(exclude=("a",)),
        ),
        f"{DIVERGED}/parameter",
        STEP_AT + 1,
        "a.bias",
    ),
    "zeroes_gradients_of_a_second_backward": Planted(
        make_case(schedule=(FORWARD, Backward(retain_graph=True), BACKWARD, STEP)),
        f"{DIVERGED}/gradient",
        BACKWARD_AT + 1,
        "a.bias",
    ),
    "loses_what_a_first_loss_left_out": Planted(
        make_case(
            PARTLY_USED,
            (FORWARD, Backward(retain_graph=True, outputs=(0,)), Backward(outputs=(1,)), STEP),
        ),
        f"{DIVERGED}/gradient",
        BACKWARD_AT + 1,
        "c.bias",
    ),
    "sum_is_not_divided": Planted(
        make_case(wrap=(WrapGroup(modules=("a",), communication=("sum",)), *groups("b", ROOT))),
        f"{DIVERGED}/gradient",
        BACKWARD_AT,
        "a.bias",
    ),
    "doubles_what_a_custom_collective_scatters": Planted(
        make_case(
            wrap=(WrapGroup(modules=("a",), communication=("custom_scatter",)), *groups("b", ROOT))
        ),
        f"{DIVERGED}/gradient",
        BACKWARD_AT,
        "a.bias",
    ),
    "leaves_unused_without_zeros": Planted(
        make_case(
            PARTLY_USED,
            (Forward(outputs=(0,)), BACKWARD, STEP),
            wrap=(
                *groups("a"),
                WrapGroup(modules=("c",), communication=("zeros_for_unused",)),
                *groups(ROOT),
            ),
        ),
        f"{DIVERGED}/gradient/missing",
        BACKWARD_AT,
        "c.bias",
    ),
    "resets_nothing": Planted(
        make_case(
            schedule=(
                KEEP,
                FORWARD,
                BACKWARD,
                Abort(target="a"),
                ALL_REDUCE,
                AGAIN,
                BACKWARD,
                STEP,
            ),
            mesh=Mesh(replicate=2, shard=1),
        ),
        f"{DIVERGED}/gradient",
        6,
        "a.bias",
        "bounded",
    ),
    "one_unit_wrong_gradient": Planted(
        EXACT, f"{DIVERGED}/gradient", BACKWARD_AT, "a.bias", "exact"
    ),
    "missing_gradient": Planted(
        make_case(), f"{DIVERGED}/gradient/missing", BACKWARD_AT, "a.weight"
    ),
    "unexpected_gradient": Planted(
        make_case(freezes=FROZEN), f"{DIVERGED}/gradient/unexpected", BACKWARD_AT, "a.bias"
    ),
    "wrong_step": Planted(make_case(), f"{DIVERGED}/parameter", STEP_AT, "a.bias"),
    "moved_frozen_parameter": Planted(
        make_case(freezes=FROZEN), f"{DIVERGED}/parameter", STEP_AT, "a.bias"
    ),
    "wrong_registered_parameter": Planted(
        make_case(wrap=groups("a", ROOT, reshard=False)),
        f"{DIVERGED}/registered_parameter",
        FORWARD_AT,
        "a.bias",
    ),
    "wrong_buffer": Planted(
        make_case(WITH_BUFFERS, wrap=groups("n", ROOT)),
        f"{DIVERGED}/buffer",
        FORWARD_AT,
        "n.running_mean",
    ),
    "zeroes_buffers_of_no_state_dict": Planted(
        make_case(chain(a=Linear(out=4), c=Constant()), ONE_STEP, wrap=groups(ROOT)),
        f"{DIVERGED}/buffer",
        FORWARD_AT,
        "c.factors",
    ),
    "not_resharded": Planted(
        make_case(), f"{DIVERGED}/registration", FORWARD_AT, "a.bias", "invariant"
    ),
    "stays_unsharded_after_backward": Planted(
        make_case(schedule=TWO_STEPS, wrap=groups("a", "b")),
        f"{DIVERGED}/output",
        AGAIN_AT,
        "output 0 of the root",
    ),
    "lost_requires_grad": Planted(
        make_case(), f"{DIVERGED}/registration", BEFORE_THE_FIRST_OP, "a.bias", "invariant"
    ),
    "gathers_twice": Planted(
        make_case(wrap=groups("a", "b", ROOT, reshard=False)),
        f"{DIVERGED}/communication",
        BACKWARD_AT,
        "all-gathers",
        "invariant",
    ),
    "reshards_in_recomputation": Planted(
        make_case(
            wrap=groups("a", "b", ROOT),
            checkpoints=(Checkpoint(module="", implementation="utils"),),
            engines=("fully_shard",),
        ),
        f"{DIVERGED}/communication",
        BACKWARD_AT,
        "all-gathers",
        "invariant",
    ),
    "gathers_for_nobody": Planted(
        make_case(), f"{DIVERGED}/communication", FORWARD_AT, "all-gathers", "invariant"
    ),
    "gathers_in_another_order_at_last": Planted(
        make_case(schedule=ONE_STEP * 3, wrap=groups("a", "b", ROOT)),
        f"{DIVERGED}/communication",
        2 * len(ONE_STEP),
        "all-gathers",
        "invariant",
    ),
    "reduces_frozen_parameters": Planted(
        make_case(freezes=(Freeze(target="a.weight"),)),
        f"{DIVERGED}/communication",
        BACKWARD_AT,
        "reduce-scatters",
        "invariant",
    ),
    "late_post_backward": Planted(make_case(), f"{DIVERGED}/hooks", BACKWARD_AT, "a", "invariant"),
    "fsdp1_late_reshard": Planted(
        make_case(freezes=FROZEN, engines=("fsdp1",)),
        "divergence/fsdp1/hooks",
        BACKWARD_AT,
        "",
        "invariant",
    ),
    "extra_collective": Planted(make_case(), f"{DIVERGED}/collectives", STEP_AT, "", "invariant"),
    "diverging_replicas": Planted(
        make_case(mesh=Mesh(replicate=2, shard=2)),
        f"{DIVERGED}/replicas",
        STEP_AT,
        "",
        "invariant",
    ),
    "restores_zeroed_gradients": Planted(
        make_case(schedule=(FORWARD, BACKWARD, STEP, AGAIN, ZERO, BACKWARD, STEP)),
        f"{DIVERGED}/gradient",
        5,
        "a.bias",
    ),
    "stale_state_dict": Planted(
        make_case(schedule=(TakeStateDict(), *TWO_STEPS)),
        f"{DIVERGED}/state_dict",
        STEP_AT + 1,
        "a.bias",
    ),
    "optimizer_not_loaded": Planted(
        make_case(schedule=resuming("dcp", "zero"), optimizer=ADAM),
        f"{DIVERGED}/resume",
        LOAD_AT,
        "exp_avg of a.bias",
    ),
    "saves_later_than_it_says": Planted(
        make_case(
            schedule=(
                *(FORWARD, BACKWARD, STEP, ZERO, SaveState(asynchronous=True)),
                *(AGAIN, BACKWARD, STEP, WaitForSave(), LoadState(), FORWARD),
            ),
            engines=("fully_shard",),
        ),
        f"{DIVERGED}/parameter",
        9,
        "a.bias",
    ),
    "optimizer_state_lost": Planted(
        make_case(schedule=resuming("state_dict", "rebuild"), optimizer=ADAM),
        f"{DIVERGED}/resume/missing",
        LOAD_AT,
        "exp_avg of a.bias",
    ),
    "not_corrupted": Planted(
        make_case(schedule=resuming("state_dict", "zero")),
        f"{DIVERGED}/resume",
        LOAD_AT - 1,
        "a.bias",
    ),
    "minimizes_shards": Planted(
        make_case(optimizer=Optimizer(maximize=True)), f"{DIVERGED}/parameter", STEP_AT, "a.bias"
    ),
    "shards_stay_scaled": Planted(
        make_case(optimizer=Optimizer(grad_scaler="finite")),
        f"{DIVERGED}/parameter",
        STEP_AT,
        "a.bias",
    ),
    "unscales_shards_twice": Planted(
        make_case(
            schedule=(FORWARD, BACKWARD, Unscale(), STEP),
            optimizer=Optimizer(grad_scaler="finite"),
        ),
        f"{DIVERGED}/parameter",
        STEP_AT + 1,
        "a.bias",
    ),
    "infinite_shards_are_stepped": Planted(
        make_case(optimizer=Optimizer(grad_scaler="infinite")),
        f"{DIVERGED}/parameter",
        STEP_AT,
        "a.bias",
    ),
    "clips_shards_that_are_not_finite": Planted(
        make_case(
            schedule=(
                *(FORWARD, BACKWARD, Unscale()),
                *(ClipGradNorm(max_norm=0.1, error_if_nonfinite=True), STEP),
            ),
            optimizer=Optimizer(grad_scaler="infinite"),
        ),
        f"{DIVERGED}/gradient",
        3,
        "a.bias",
    ),
    "rmsprop_goes_too_far": Planted(
        make_case(optimizer=Optimizer(kind="rmsprop")),
        f"{DIVERGED}/parameter",
        STEP_AT,
        "a.bias",
    ),
    "orthogonalizes_shards": Planted(
        make_case(optimizer=MUON), f"{DIVERGED}/parameter", STEP_AT, "a.weight"
    ),
    "checkpoints_have_one_optimizer": Planted(
        make_case(schedule=resuming("dcp", "zero"), optimizer=BESIDE, engines=("fully_shard",)),
        f"{DIVERGED}/resume",
        LOAD_AT,
        "exp_avg of a.bias",
    ),
    "steps_with_the_first_rate": Planted(
        make_case(schedule=TWO_STEPS, optimizer=HALVED),
        f"{DIVERGED}/parameter",
        len(TWO_STEPS) - 1,
        "a.bias",
    ),
    "rate_not_loaded": Planted(
        make_case(schedule=resuming("dcp", "rebuild"), optimizer=HALVED),
        f"{DIVERGED}/parameter",
        LOAD_AT + 3,
        "a.bias",
    ),
    "reads_shards_from_their_beginning": Planted(
        make_case(
            schedule=(*(FORWARD, BACKWARD, STEP, ZERO, SaveState()), *ON_SHARDS, AGAIN),
            mesh=Mesh(replicate=2, shard=1),
        ),
        f"{DIVERGED}/parameter",
        LOAD_AT,
        "a.bias",
    ),
    "ddp_wrong_gradient": Planted(make_case(), "divergence/ddp/gradient", BACKWARD_AT, "a.bias"),
    "ddp_detaches_input_gradients": Planted(
        make_case(loss="gradient_penalty"), "divergence/ddp/gradient", BACKWARD_AT, "a.weight"
    ),
    "ddp_no_sync_syncs": Planted(
        make_case(schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP)),
        "divergence/ddp/local_gradient",
        2,
        "a.bias",
    ),
    "ddp_one_bucket_reduced": Planted(
        make_case(ddp=DDP(buckets="one_each")), "divergence/ddp/gradient", BACKWARD_AT, "a.bias"
    ),
    "ddp_keeps_initial_values": Planted(
        make_case(ddp=DDP(initial="first_rank")),
        "divergence/ddp/output",
        0,
        "output 0 of the root",
    ),
    "ddp_keeps_buffers": Planted(
        make_case(
            chain(n=BatchNorm(), a=Linear(out=3)),
            schedule=(*TWO_STEPS, FORWARD),
            engines=("ddp",),
            ddp=DDP(buffers="broadcast"),
        ),
        "divergence/ddp/buffer",
        4,
        "n.running_mean",
    ),
    "accumulates_with_fewer_bits": Planted(
        in_precision(
            Precision(param="bfloat16", reduce="float32"),
            schedule=(NO_SYNC, FORWARD, BACKWARD, AGAIN, BACKWARD, SYNC, FORWARD, BACKWARD, STEP),
            mesh=3,
        ),
        f"{DIVERGED}/unreduced_gradient",
        4,
        "b.bias",
        "precision",
    ),
    "keeps_unsharded_gradient": Planted(
        make_case(),
        f"{DIVERGED}/unreduced_gradient/unexpected",
        BACKWARD_AT,
        "a.weight",
    ),
    "keeps_unsharded_memory": Planted(
        make_case(),
        f"{DIVERGED}/leak/memory",
        STEP_AT,
        "unsharded a.bias",
        "invariant",
    ),
    "keeps_reduction_inputs": Planted(
        make_case(),
        f"{DIVERGED}/leak/reduction",
        STEP_AT,
        "reduction of a",
        "invariant",
    ),
    "leaves_a_hook": Planted(
        make_case(),
        f"{DIVERGED}/leak/hook",
        STEP_AT,
        "_forward_hooks of a",
        "invariant",
    ),
    "keeps_every_model": Planted(
        make_case(),
        f"{DIVERGED}/leak/survivor",
        STEP_AT,
        "the model",
        "invariant",
    ),
    "misplaced_optimizer_state": Planted(
        make_case(optimizer=ADAM),
        f"{DIVERGED}/leak/layout",
        STEP_AT,
        "exp_avg of a.bias",
        "invariant",
    ),
    "offloaded_gradient_lost": Planted(
        make_case(wrap=(WrapGroup(modules=(ROOT,), offload="unpinned"),)),
        f"{DIVERGED}/gradient",
        BACKWARD_AT,
        "a.bias",
    ),
    "extensions_get_the_first_gather": Planted(
        make_case(
            schedule=TWO_STEPS,
            wrap=(WrapGroup(modules=(ROOT,), all_gather_extension="signs_apart"),),
        ),
        f"{DIVERGED}/output",
        AGAIN_AT,
        "output 0 of the root",
    ),
    "trains_what_was_gathered": Planted(
        make_case(
            wrap=(WrapGroup(modules=(ROOT,), all_gather_extension="float8"),),
            inputs=PLAIN,
        ),
        f"{DIVERGED}/parameter",
        STEP_AT,
        "a.bias",
    ),
    "other_dim_wrong_gradient": Planted(
        make_case(
            chain(a=Linear(out=4), b=Linear(out=2)),
            wrap=(WrapGroup(modules=(ROOT,), shard_dim="last"),),
            inputs=float_inputs(4),
        ),
        f"{DIVERGED}/gradient",
        BACKWARD_AT,
        "a.weight",
    ),
    "prefetch_gathers_zeros": Planted(
        make_case(wrap=(WrapGroup(modules=("a",), forward_prefetch=("b",)), *groups("b", ROOT))),
        f"{DIVERGED}/output",
        FORWARD_AT,
        "output 0 of the root",
    ),
    "reduce_dtype_ignored": Planted(
        in_precision(Precision(param="bfloat16", reduce="float32")),
        f"{DIVERGED}/communication",
        BACKWARD_AT,
        "reduce-scatters",
        "invariant",
    ),
    "stale_low_precision_copy": Planted(
        in_precision(Precision(param="bfloat16"), schedule=TWO_STEPS),
        f"{DIVERGED}/output",
        AGAIN_AT,
        "output 0 of the root",
        "precision",
    ),
    "output_dtype_ignored": Planted(
        in_precision(Precision(param="bfloat16", output="float32")),
        f"{DIVERGED}/output",
        FORWARD_AT,
        "output 0 of the root",
        "precision",
    ),
    "divide_factor_ignored": Planted(
        make_case(schedule=(SetDivideFactor(factor=4.0), FORWARD, BACKWARD)),
        f"{DIVERGED}/gradient",
        2,
        "a.bias",
    ),
    "unshard_registers_nothing": Planted(
        make_case(schedule=(Unshard(), FORWARD, BACKWARD)),
        f"{DIVERGED}/registration",
        0,
        "a.bias",
        "invariant",
    ),
    "reshard_does_nothing": Planted(
        make_case(schedule=(FORWARD, Reshard(), BACKWARD), wrap=groups(ROOT)),
        f"{DIVERGED}/registration",
        1,
        "a.bias",
        "invariant",
    ),
    "reshard_flag_ignored": Planted(
        make_case(
            schedule=(SetFlag(flag="reshard_after_forward", value=True), FORWARD, BACKWARD),
            wrap=groups(ROOT),
        ),
        f"{DIVERGED}/registration",
        1,
        "a.bias",
        "invariant",
    ),
    "compiled_wrong_output": Planted(
        make_case(compile="eager", wrap=groups(ROOT)),
        f"{DIVERGED}/output",
        FORWARD_AT,
        "output 0 of the root",
        "bounded",
    ),
    "zero_redundancy_does_not_broadcast": Planted(
        make_case(engines=("zero_redundancy",)),
        "divergence/zero_redundancy/parameter",
        STEP_AT,
        "a.bias",
    ),
    "wrong_optimizer_state": Planted(
        make_case(optimizer=ADAM),
        f"{DIVERGED}/optimizer_state",
        STEP_AT,
        "exp_avg_sq of a.bias",
    ),
    "clips_shards_at_twice_the_value": Planted(
        make_case(schedule=(FORWARD, BACKWARD, ClipGradValue(clip_value=0.01), STEP)),
        f"{DIVERGED}/gradient",
        2,
        "a.bias",
    ),
    "clips_by_the_norm_of_a_tensor_parallel_shard": Planted(
        msgspec.structs.replace(
            IN_PARALLEL, schedule=(FORWARD, BACKWARD, ClipGradNorm(max_norm=0.1), STEP)
        ),
        f"{DIVERGED}/gradient",
        2,
        "a.bias",
    ),
    "clips_by_the_norm_of_a_shard": Planted(
        make_case(schedule=(FORWARD, BACKWARD, ClipGradNorm(max_norm=0.1), STEP)),
        f"{DIVERGED}/gradient",
        2,
        "a.bias",
        "bounded",
    ),
    "clips_by_the_largest_element_of_a_shard": Planted(
        make_case(schedule=(FORWARD, BACKWARD, ClipGradNorm(max_norm=0.1, norm_type="inf"), STEP)),
        f"{DIVERGED}/gradient",
        2,
        "a.bias",
        "bounded",
    ),
    "tp_sums_in_low_precision": Planted(
        make_case(
            chain(a=Linear(out=4), n=LayerNorm(), b=Linear(out=4)),
            mesh=Mesh(shard=1, tensor=2),
            inputs=float_inputs(seq=4),
            tensor_parallel=(
                rowwise("a", input="replicate", output="sequence"),
                TensorParallel(module="n", style="sequence", local_output=False),
                colwise("b", input="sequence", output="replicate"),
            ),
            wrap=(
                WrapGroup(
                    modules=(ROOT,), precision=Precision(param="bfloat16", reduce="float32")
                ),
            ),
        ),
        f"{DIVERGED}/communication",
        BACKWARD_AT,
        "sums over tensor-parallel ranks",
        "invariant",
    ),
    "tp_output_not_summed": Planted(
        IN_PARALLEL, f"{DIVERGED}/output", FORWARD_AT, "output 0 of the root", "bounded"
    ),
    "tp_one_unit_wrong_output": Planted(
        msgspec.structs.replace(IN_PARALLEL, values="dyadic", schedule=(FORWARD, BACKWARD, STEP)),
        f"{DIVERGED}/output",
        FORWARD_AT,
        "output 0 of the root",
        "exact",
    ),
    "tp_gradient_not_summed": Planted(
        SEQUENCE_PARALLEL, f"{DIVERGED}/gradient", BACKWARD_AT, "n.bias", "bounded"
    ),
    "replicate_never_syncs": Planted(
        make_case(engines=("replicate",)), "divergence/replicate/gradient", BACKWARD_AT, "a.bias"
    ),
    "divides_no_sum_of_microbatches": Planted(
        in_stages(FORWARD, AGAIN, BACKWARD, STEP),
        "divergence/pipelining/gradient",
        2,
        "a.bias",
    ),
    "clips_by_the_norm_of_a_stage": Planted(
        in_stages(FORWARD, AGAIN, BACKWARD, ClipGradNorm(max_norm=0.1), STEP),
        "divergence/pipelining/gradient",
        3,
        "a.bias",
        "bounded",
    ),
    "evaluations_end_training": Planted(
        in_stages(*UNTAPED, FORWARD, AGAIN, BACKWARD, STEP),
        "divergence/pipelining/gradient/missing",
        4,
        "a.bias",
    ),
    "states_of_stages_are_not_loaded": Planted(
        msgspec.structs.replace(
            in_stages(
                *(FORWARD, AGAIN, BACKWARD, STEP, ZERO),
                *(SaveState(), CorruptState(), LoadState(assign=True)),
            ),
            optimizer=ADAM,
        ),
        "divergence/pipelining/resume",
        7,
        "exp_avg of a.bias",
        "bounded",
    ),
    "experts_divide_by_their_ranks": Planted(
        make_case(
            chain(a=Linear(out=4), moe=Experts(out=4, experts=4), b=Linear(out=3)),
            mesh=Mesh(replicate=1, shard=2),
            wrap=groups("moe", ROOT),
            engines=("expert_parallel", "fully_shard"),
        ),
        "divergence/expert_parallel/gradient",
        BACKWARD_AT,
        "moe.grouped.weight",
    ),
    "attention_leaves_out_keys": Planted(
        ATTENDING, "divergence/context_parallel/output", FORWARD_AT, "output 0 of the root"
    ),
    "positions_stay_balanced": Planted(
        ATTENDING, "divergence/context_parallel/output", FORWARD_AT, "output 0 of the root"
    ),
    "ring_adds_no_half_gradients": Planted(
        ATTENDING, "divergence/context_parallel/gradient", BACKWARD_AT, "sdpa.qkv.weight"
    ),
    "averaged_shards_are_sums": Planted(
        make_case(engines=("simple_fsdp", "fully_shard")),
        "divergence/simple_fsdp/gradient",
        BACKWARD_AT,
        "a.bias",
    ),
    "fsdp1_wrong_gradient": Planted(BY_FSDP1, "divergence/fsdp1/gradient", BACKWARD_AT, "a.bias"),
    "fsdp1_missing_gradient": Planted(
        BY_FSDP1, "divergence/fsdp1/gradient/missing", BACKWARD_AT, "a.bias"
    ),
    "fsdp1_wrong_output": Planted(
        BY_FSDP1, "divergence/fsdp1/output", FORWARD_AT, "output 0 of the root"
    ),
    "fsdp1_stale_shard": Planted(BY_FSDP1, "divergence/fsdp1/parameter", STEP_AT, "a.bias"),
    "fsdp1_no_sync_syncs": Planted(
        make_case(
            schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP), engines=("fsdp1",)
        ),
        "divergence/fsdp1/local_gradient",
        2,
        "a.bias",
    ),
    "fsdp1_warns_needlessly": Planted(
        make_case(schedule=TWO_STEPS, engines=("fsdp1",), fsdp1=FSDP1(debug="detail")),
        "divergence/fsdp1/warning",
        AGAIN_AT,
        "",
        "invariant",
    ),
}

RAISED = "crash/fully_shard"
CRASHES = {
    "raises_in_post_backward": Planted(
        make_case(), f"{RAISED}/AssertionError in backward", BACKWARD_AT, status=Status.CRASH
    ),
    "raises_on_one_rank": Planted(
        make_case(), f"{RAISED}/ValueError in _pre_forward", FORWARD_AT, status=Status.CRASH
    ),
    "ddp_raises": Planted(
        make_case(), "crash/ddp/KeyError in wrong", FORWARD_AT, status=Status.CRASH
    ),
    "aborts_on_one_rank": Planted(make_case(), "desync/fully_shard", -1, status=Status.CRASH),
    "segfaults_on_one_rank": Planted(
        make_case(), "death/fully_shard/SIGSEGV", -1, status=Status.CRASH
    ),
}


IN_RANKS_OF_THEIR_OWN = ("compiled_wrong_output",)
"""Faults that cannot be taken back."""

Faulty = Callable[[str, Case], Verdict]


@pytest.fixture
def faulty(four_ranks: World, tmp_path: Path) -> Faulty:
    """Runs a case on ranks that have a fault while it runs."""

    def run(fault: str, case: Case) -> Verdict:
        if fault in IN_RANKS_OF_THEIR_OWN:
            with faulty_world(fault, case) as world:
                return world.run(case)
        return four_ranks.run(case, mends=(str(planting_file(tmp_path, FAULTS / f"{fault}.py")),))

    return run


@contextlib.contextmanager
def faulty_world(fault: str, case: Case) -> Iterator[World]:
    config = WorldConfig(size=case.mesh.size, preload=(str(FAULTS / f"{fault}.py"),))
    with World(config) as world:
        yield world


def healthy(case: Case, culprit: str) -> Case:
    """The same case for the engine that the fault is not in."""
    other: EngineName = "ddp" if culprit == "fully_shard" else "fully_shard"
    return msgspec.structs.replace(case, engines=(other,), ddp=DDP())


def assert_found(verdict: Verdict, planted: Planted) -> None:
    assert (verdict.status, verdict.signature) == (planted.status, planted.signature), (
        verdict.findings[:3]
    )
    first = verdict.findings[0]
    assert first.engine == planted.signature.split("/")[1]
    assert (first.op, first.name) == (planted.op, planted.name)


@pytest.mark.parametrize(("fault", "planted"), DIVERGENCES.items(), ids=DIVERGENCES.keys())
def test_a_planted_divergence_is_found(faulty: Faulty, fault: str, planted: Planted) -> None:
    verdict = faulty(fault, planted.case)
    assert_found(verdict, planted)
    assert verdict.findings[0].rung == planted.rung


FAULTS_BY_CASE = {planted.case: fault for fault, planted in (DIVERGENCES | CRASHES).items()}


@pytest.mark.parametrize("case", FAULTS_BY_CASE.keys(), ids=FAULTS_BY_CASE.values())
def test_a_case_passes_without_its_faults(four_ranks: World, case: Case) -> None:
    assert four_ranks.run(case).status is Status.PASS


@pytest.mark.parametrize(("fault", "planted"), CRASHES.items(), ids=CRASHES.keys())
def test_a_planted_crash_is_found_and_the_world_works_again(fault: str, planted: Planted) -> None:
    with faulty_world(fault, planted.case) as world:
        world.start()
        before = world.pids
        verdict = world.run(planted.case)
        assert_found(verdict, planted)
        assert world.run(healthy(planted.case, verdict.findings[0].engine)).status is Status.PASS
        assert not set(world.pids) & set(before)


@pytest.mark.parametrize(
    "fault", ["ddp_one_bucket_reduced", "ddp_keeps_initial_values", "ddp_keeps_buffers"]
)
def test_a_fault_of_an_option_shows_where_a_case_has_that_option_only(
    faulty: Faulty, fault: str
) -> None:
    case = DIVERGENCES[fault].case
    assert faulty(fault, msgspec.structs.replace(case, ddp=DDP())).status is Status.PASS


@pytest.mark.parametrize(
    ("fault", "at"),
    [("clips_by_the_largest_element_of_a_shard", 2), ("clips_shards_that_are_not_finite", 3)],
)
def test_a_fault_of_clipping_shows_where_a_case_clips_like_that_only(
    faulty: Faulty, fault: str, at: int
) -> None:
    case = DIVERGENCES[fault].case
    usual = (*case.schedule[:at], ClipGradNorm(max_norm=0.1), STEP)
    assert faulty(fault, msgspec.structs.replace(case, schedule=usual)).status is Status.PASS


def test_a_fault_of_inference_mode_shows_where_a_state_dict_is_taken_in_it_only(
    faulty: Faulty,
) -> None:
    """fully_shard is left out, as DTensor has a bug there."""
    usual = make_case(schedule=(TakeStateDict(), *TWO_STEPS), engines=("ddp",))
    schedule = (TakeStateDict(inference=True), *TWO_STEPS)
    case = msgspec.structs.replace(usual, schedule=schedule)
    planted = Planted(case, "divergence/ddp/state_dict", STEP_AT + 1, "a.bias")
    assert_found(faulty("state_dict_copies_in_inference", case), planted)
    assert faulty("state_dict_copies_in_inference", usual).status is Status.PASS


def test_a_fault_of_adapters_shows_where_what_they_adapt_is_frozen_only(faulty: Faulty) -> None:
    case = DIVERGENCES["frozen_matrices_take_gradients"].case
    for freezes in ((), (Freeze(target="b"),)):
        other = msgspec.structs.replace(case, freezes=freezes)
        assert faulty("frozen_matrices_take_gradients", other).status is Status.PASS


def test_a_fault_of_added_modules_shows_where_the_model_is_wrapped_already_only(
    faulty: Faulty,
) -> None:
    case = DIVERGENCES["freezes_added_modules"].case
    ignored = msgspec.structs.replace(case, ignored_by="argument")
    assert faulty("freezes_added_modules", ignored).status is Status.PASS


def test_a_fault_of_extensions_shows_where_a_case_has_them_only(faulty: Faulty) -> None:
    case = DIVERGENCES["extensions_get_the_first_gather"].case
    plain = msgspec.structs.replace(case, wrap=groups(ROOT))
    assert faulty("extensions_get_the_first_gather", plain).status is Status.PASS


def test_a_fault_of_one_moment_shows_where_a_call_comes_at_that_moment_only(
    faulty: Faulty,
) -> None:
    case = DIVERGENCES["restores_zeroed_gradients"].case
    usual = (FORWARD, BACKWARD, STEP, ZERO, AGAIN, BACKWARD, STEP)
    assert (
        faulty("restores_zeroed_gradients", msgspec.structs.replace(case, schedule=usual)).status
        is Status.PASS
    )


@pytest.mark.parametrize(
    "fault",
    [
        *("minimizes_shards", "rmsprop_goes_too_far", "orthogonalizes_shards"),
        *("steps_with_the_first_rate", "rate_not_loaded", "checkpoints_have_one_optimizer"),
        *("shards_stay_scaled", "infinite_shards_are_stepped"),
    ],
)
def test_a_fault_of_an_optimizer_option_shows_where_a_case_has_that_option_only(
    faulty: Faulty,
    fault: str,
) -> None:
    case = DIVERGENCES[fault].case
    plain = msgspec.structs.replace(case, optimizer=Optimizer())
    assert faulty(fault, plain).status is Status.PASS


@pytest.mark.parametrize("fault", ["weights_by_own_tokens", "ddp_detaches_input_gradients"])
def test_a_fault_of_a_loss_shows_where_a_case_has_that_loss_only(
    faulty: Faulty, fault: str
) -> None:
    case = DIVERGENCES[fault].case
    for loss in ("sum", "dot", "mean_square"):
        other = msgspec.structs.replace(case, loss=loss)
        assert faulty(fault, other).status is Status.PASS


@pytest.mark.parametrize(
    "fault",
    [
        *(f"drops_hooks_of_{hooks}" for hooks in ("users", "outputs", "parameters", "optimizers")),
        "average_of_shards_stays",
    ],
)
def test_a_fault_of_an_op_shows_where_a_case_has_it_only(faulty: Faulty, fault: str) -> None:
    case = DIVERGENCES[fault].case
    assert faulty(fault, msgspec.structs.replace(case, schedule=ONE_STEP)).status is Status.PASS


def test_a_fault_of_what_is_rounded_shows_where_something_is(faulty: Faulty) -> None:
    case = DIVERGENCES["trains_what_was_gathered"].case
    (group,) = case.wrap
    exact = msgspec.structs.replace(group, all_gather_extension="negated")
    case = msgspec.structs.replace(case, wrap=(exact,))
    assert faulty("trains_what_was_gathered", case).status is Status.PASS


def test_a_rank_that_raises_is_named_and_its_peer_shows_where_it_waits() -> None:
    planted = CRASHES["raises_on_one_rank"]
    with faulty_world("raises_on_one_rank", planted.case) as world:
        verdict = world.run(planted.case)
    assert verdict.findings[0].rank == 1
    assert verdict.findings[0].observed == "ValueError: stream is not ready"
    assert "raises_on_one_rank.py" in verdict.stacks["rank 1"]
    assert "all_gather" in verdict.stacks["rank 0"]


@pytest.mark.parametrize("fault", ["aborts_on_one_rank", "segfaults_on_one_rank"])
def test_a_rank_that_dies_leaves_the_stack_it_died_with(fault: str) -> None:
    with faulty_world(fault, CRASHES[fault].case) as world:
        verdict = world.run(CRASHES[fault].case)
    assert f"{fault}.py" in verdict.stacks["rank 1"]


def test_a_hang_is_recognised_at_its_deadline_with_the_stack_of_every_rank(
    four_ranks: World,
) -> None:
    case = make_case()
    with faulty_world("sleeps_on_one_rank", case) as world:
        world.run(healthy(case, "fully_shard"))
        deadline = world.deadline.seconds(fresh=False)
        verdict = world.run(case)
        assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
        assert verdict.seconds < deadline + 1 + SLOW_STACK_SECONDS
        assert {"rank 0", "rank 1"} < set(verdict.stacks)
        assert "in wait_for_ever" in verdict.stacks["rank 1"]
        assert "all_gather" in verdict.stacks["rank 0"]
        assert world.run(healthy(case, "fully_shard")).status is Status.PASS
    assert four_ranks.run(case).status is Status.PASS


def test_a_doubled_gradient_is_found_in_half_precision_too(
    faulty: Faulty, four_ranks: World
) -> None:
    case = in_precision(Precision(param="bfloat16"), schedule=(FORWARD, BACKWARD), mesh=3)
    verdict = faulty("wrong_gradient", case)
    assert_found(verdict, Planted(case, f"{DIVERGED}/gradient", BACKWARD_AT, "a.bias"))
    assert verdict.rung == "precision"
    assert four_ranks.run(case).status is Status.PASS


def test_an_error_of_a_few_units_that_stays_in_float64_is_found(faulty: Faulty) -> None:
    case = make_case(schedule=(FORWARD, BACKWARD), mesh=4)
    verdict = faulty("slightly_wrong_gradient", case)
    assert_found(verdict, Planted(case, f"{DIVERGED}/gradient", BACKWARD_AT, "a.bias"))


def test_what_an_order_of_summation_explains_is_no_finding_where_orders_differ(
    faulty: Faulty,
) -> None:
    case = make_case(mesh=4)
    verdict = faulty("one_unit_wrong_gradient", case)
    assert (verdict.status, verdict.rung) == (Status.PASS, "bounded")


def test_a_rounding_unit_is_a_finding_before_the_first_op_that_rounds(
    faulty: Faulty, four_ranks: World
) -> None:
    """The step does, by a learning rate that is no power of two; what comes before it is exact."""
    case = msgspec.structs.replace(EXACT, optimizer=Optimizer(lr=0.1))
    verdict = faulty("one_unit_wrong_gradient", case)
    assert_found(verdict, Planted(case, f"{DIVERGED}/gradient", BACKWARD_AT, "a.bias", "exact"))
    assert four_ranks.run(case).status is Status.PASS


@pytest.mark.parametrize(
    ("faults", "schedule", "oracle"),
    [
        (("reference_wrong_gradient",), (FORWARD, BACKWARD, STEP), "gradient"),
        (("wrong_gradient", "ddp_wrong_gradient"), (FORWARD, BACKWARD, STEP), "gradient"),
        (("checkpoints_load_twice_the_values",), resuming("dcp", "zero"), "parameter"),
    ],
    ids=("in the reference", "the same in two engines", "in code that two engines share"),
)
def test_engines_that_agree_against_the_reference_are_a_finding(
    faults: tuple[str, ...], schedule: tuple[Op, ...], oracle: str
) -> None:
    case = make_case(schedule=schedule)
    preload = tuple(str(FAULTS / f"{fault}.py") for fault in faults)
    with World(WorldConfig(size=2, preload=preload)) as world:
        verdict = world.run(case)
    first = verdict.findings[0]
    assert verdict.status is Status.DIVERGENCE
    assert verdict.signature == f"divergence/{case.engines[0]}/{oracle}/shared"
    assert {first.engine, *first.agrees_with} == set(case.engines)
    assert {finding.engine for finding in verdict.findings} == set(case.engines)


def test_a_state_that_was_never_lost_accuses_the_harness() -> None:
    case = make_case(schedule=resuming("state_dict", "zero"))
    with faulty_world("reference_not_corrupted", case) as world:
        verdict = world.run(case)
    assert verdict.status is Status.INFRA
    assert [(f.oracle, f.engine, f.op) for f in verdict.findings[:1]] == [
        ("resume", "reference", LOAD_AT - 1)
    ]


def test_a_fault_that_a_refusal_of_another_engine_hides_is_found(faulty: Faulty) -> None:
    case = make_case(freezes=(Freeze(target=ROOT),), schedule=(FORWARD, BACKWARD, STEP, ZERO))
    verdict = faulty("wrong_output", case)
    assert verdict.signature == f"{DIVERGED}/output"
    assert verdict.notes["ddp"].startswith("refused: ")


def test_an_order_that_fsdp1_does_not_check_breaks_what_a_case_expects(faulty: Faulty) -> None:
    cases = [row.cells[0].case for row in exec_order.ROWS if row.id in ("E1", "E2")]
    for case in cases:
        verdict = faulty("fsdp1_checks_no_order", case)
        assert (verdict.status, verdict.signature) == (
            Status.DIVERGENCE,
            "divergence/fsdp1/expectation",
        )
        assert verdict.findings[0].op == case.expect[0].op
        assert verdict.findings[0].observed in ("no error", "no warning")


def test_every_fault_is_planted_somewhere() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    named = set(re.findall(r'"(\w+)(?:\.py)?"', source))
    assert {fault.stem for fault in FAULTS.glob("*.py")} - named == set()
