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
    chain,
    colwise,
    float_inputs,
    graph,
    groups,
    rowwise,
    skip_if_torch_lacks,
)
from planting import TESTS, fault_file, faults, planting_mend
from upstream import exec_order

from fuzzshard.case.case import (
    ENGINES,
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
from fuzzshard.case.options import DDP, FSDP1, SPMD, Pipelining, Precision, TensorParallel
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.attention import FusedAttention
from fuzzshard.parts.leaves.constant import Constant
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.lstm import LSTM
from fuzzshard.parts.leaves.norms import BatchNorm, GroupNorm, LayerNorm
from fuzzshard.parts.leaves.operators import Operators
from fuzzshard.parts.leaves.running_sum import RunningSum
from fuzzshard.parts.leaves.weight_norm import WeightNorm
from fuzzshard.parts.op import Op, StateOption, Via
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.world import SLOW_STACK_SECONDS

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
    comparison: str = "bounded"
    status: Status = Status.DIVERGENCE


LOAD_AT = 6
USUAL = {
    "output": (FORWARD_AT, "output 0 of the root"),
    "gradient": (BACKWARD_AT, "a.bias"),
    "parameter": (STEP_AT, "a.bias"),
    "resume": (LOAD_AT, "exp_avg of a.bias"),
    "registration": (FORWARD_AT, "a.bias"),
    "communication": (BACKWARD_AT, "all-gathers"),
    "hooks": (BACKWARD_AT, ""),
    "leak": (STEP_AT, ""),
}
"""The op and the culprit that most findings of an oracle have."""
INVARIANTS = (
    "registration",
    "communication",
    "hooks",
    "leak",
    "collectives",
    "replicas",
    "warning",
)


def diverges(
    what: str,
    *,
    at: int | None = None,
    name: str | None = None,
    comparison: str | None = None,
    engine: str | None = None,
    case: Case | None = None,
    **options: Any,
) -> Planted:
    """A divergence in ``what`` of one engine of a case."""
    case = case or make_case(**options)
    usual = "fully_shard" if case.engines == ENGINES else case.engines[0]
    oracle = what.split("/")[0]
    op, culprit = USUAL.get(oracle, (at, ""))
    return Planted(
        case,
        f"divergence/{engine or usual}/{what}",
        op if at is None else at,
        culprit if name is None else name,
        comparison or ("invariant" if oracle in INVARIANTS else "bounded"),
    )


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
PARTLY_USED = graph(
    "h = a(x)", "z = c(h)", outputs="h z", returns="tuple", a=Linear(out=5), c=Linear(out=3)
)
NO_SYNC, SYNC = (
    ops.SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True)
)
KEEP, ALL_REDUCE = (
    ops.SetFlag(flag="requires_all_reduce", value=value) for value in (False, True)
)


def in_stages(*schedule: Op) -> Case:
    """A pipeline of two stages, each on a rank of its own."""
    mesh, wrap = Mesh(pipeline=2, shard=1), groups(ROOT)
    return make_case(
        schedule=schedule, mesh=mesh, inputs=PLAIN, wrap=wrap, engines=("pipelining",)
    )


def looped(microbatches: int = 2, **options: Any) -> Case:
    """A pipeline of two stages on each of two ranks, with options of its schedule."""
    forwards = (ops.Forward(batch=i) for i in range(microbatches))
    return msgspec.structs.replace(
        in_stages(*forwards, BACKWARD, STEP),
        model=chain(a=Linear(out=4), b=Linear(out=3), c=Linear(out=5), d=Linear(out=4)),
        pipelining=Pipelining(**{"schedule_class": "looped_bfs"} | options),
    )


UNTAPED = (ops.Forward(grad=False), ops.Forward(batch=1, grad=False))

ADAM = Optimizer(kind="adam")
HOOKED = ops.RegisterParameterHook(hook="post_accumulate_grad_hook", target="a.bias")
STEPPING = ops.RegisterParameterHook(hook="step_in_backward", scale=0.125, target="a.bias")
MUON = Optimizer(kind="muon", exclude=("a.bias", "b.bias"))
BESIDE = msgspec.structs.replace(MUON, beside="adamw")
HALVED = Optimizer(lr_scheduler="step_lr")
AGAIN_AT = TWO_STEPS.index(AGAIN)


def resuming(via: Via, how: Literal["zero", "rebuild"], *options: StateOption) -> tuple[Op, ...]:
    """Saves after a step, corrupts and loads at once."""
    saving = ops.SaveState(via=via, options=options)
    between = (saving, ops.CorruptState(how=how), ops.LoadState())
    return (FORWARD, BACKWARD, STEP, ZERO, *between, AGAIN, BACKWARD, STEP)


ON_SHARDS = (ops.CorruptState(how="rebuild", mesh=(2,)), ops.LoadState())
BY_FSDP1 = make_case(engines=("fsdp1",))
WHOLE = make_case(
    schedule=TWO_STEPS,
    wrap=groups("a", "b", ROOT, reshard=False),
    engines=("replicate_with_fsdp",),
)


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
OF_DTENSORS = make_case(
    chain(a=Linear(out=3), m=Operators(functions=(("mean", -1),)), b=Linear(out=3)),
    mesh=Mesh(shard=1, tensor=2),
    tensor_parallel=(TensorParallel(module="m", style="dtensor", dim=-1),),
)

DIVERGENCES = {
    "wrong_output": diverges("output"),
    "group_norm_ignores_groups": diverges(
        "output", model=chain(a=Linear(out=4), n=GroupNorm(groups=2)), wrap=groups("n", ROOT)
    ),
    "lstm_weights_are_copies": diverges(
        "gradient/missing",
        name="a.lstm.bias_hh_l0",
        model=chain(b=Linear(out=4), a=LSTM(out=4)),
        wrap=groups(ROOT),
        inputs=float_inputs(seq=3),
    ),
    "weight_norm_is_doubled": diverges(
        "output", model=chain(a=WeightNorm(out=4)), wrap=groups(ROOT)
    ),
    "wrong_input_gradient": diverges(
        "input_gradient", at=BACKWARD_AT, name="input 0 of batch 0", wrap=groups(ROOT)
    ),
    "wrong_gradient": diverges("gradient"),
    "frozen_matrices_take_gradients": diverges(
        "gradient/missing",
        name="a.down.weight",
        model=ADAPTED,
        wrap=groups("a", ROOT),
        freezes=(Freeze(target="a.base"),),
    ),
    "freezes_added_modules": diverges(
        "registration",
        name="a.down.weight",
        model=ADAPTED,
        wrap=groups("a", ROOT),
        ignored=("a.down", "a.up"),
        ignored_by="adding",
    ),
    "drops_neighbours_of_ignored": diverges(
        "registration", at=BEFORE_THE_FIRST_OP, ignored=("a.weight",)
    ),
    "weights_by_rows": diverges("gradient", inputs=SHORT_ON_ONE_RANK),
    "weights_by_own_tokens": diverges("gradient", name="b.bias", loss="token_mean"),
    "drops_hooks_of_users": diverges(
        "output",
        at=FORWARD_AT + 1,
        schedule=(ops.RegisterHook(hook="forward_hook", target="a"), *ONE_STEP),
    ),
    "forgets_grad_dtypes": diverges(
        "gradient",
        at=BACKWARD_AT + 1,
        schedule=(ops.SetGradDtype(target="a", dtype="float64"), *ONE_STEP),
    ),
    "average_of_shards_stays": diverges(
        "parameter",
        at=STEP_AT + 2,
        schedule=(ops.RunningAverage(), *ONE_STEP, ops.RunningAverage(copied=True)),
    ),
    "drops_hooks_of_outputs": diverges(
        "input_gradient",
        at=BACKWARD_AT + 1,
        name="input 0 of batch 0",
        schedule=(ops.RegisterHook(hook="output_hook", target="b"), *ONE_STEP),
    ),
    "drops_hooks_of_parameters": diverges(
        "gradient", at=BACKWARD_AT + 1, schedule=(HOOKED, *ONE_STEP)
    ),
    "restores_cleared_gradients": diverges(
        "gradient/unexpected", at=BACKWARD_AT + 1, schedule=(STEPPING, *ONE_STEP)
    ),
    "drops_hooks_of_optimizers": diverges(
        "parameter",
        at=STEP_AT + 1,
        engines=("zero_redundancy",),
        schedule=(ops.RegisterStepHook(hook="step_post_hook"), *ONE_STEP),
    ),
    "steps_added_groups_with_the_first_rate": diverges(
        "parameter",
        at=STEP_AT + 1,
        schedule=(ops.AddParamGroup(target="a", rate=0.25), *ONE_STEP),
        optimizer=Optimizer(exclude=("a",)),
    ),
    "zeroes_gradients_of_a_second_backward": diverges(
        "gradient",
        at=BACKWARD_AT + 1,
        schedule=(FORWARD, ops.Backward(retain_graph=True), BACKWARD, STEP),
    ),
    "loses_what_a_first_loss_left_out": diverges(
        "gradient",
        at=BACKWARD_AT + 1,
        name="c.bias",
        model=PARTLY_USED,
        schedule=(
            FORWARD,
            ops.Backward(retain_graph=True, outputs=(0,)),
            ops.Backward(outputs=(1,)),
            STEP,
        ),
    ),
    "sum_is_not_divided": diverges(
        "gradient", wrap=(WrapGroup(modules=("a",), communication=("sum",)), *groups("b", ROOT))
    ),
    "doubles_what_a_custom_collective_scatters": diverges(
        "gradient",
        wrap=(WrapGroup(modules=("a",), communication=("custom_scatter",)), *groups("b", ROOT)),
    ),
    "leaves_unused_without_zeros": diverges(
        "gradient/missing",
        name="c.bias",
        model=PARTLY_USED,
        schedule=(ops.Forward(outputs=(0,)), BACKWARD, STEP),
        wrap=(
            *groups("a"),
            WrapGroup(modules=("c",), communication=("zeros_for_unused",)),
            *groups(ROOT),
        ),
    ),
    "leaves_late_words_unheard": diverges(
        "gradient/missing",
        at=4,
        name="c.bias",
        model=PARTLY_USED,
        schedule=(
            *(ops.Forward(outputs=(0,)), BACKWARD),
            ops.Tell(word="zeros_for_unused", target="c", recurse=False),
            *(ops.Forward(outputs=(0,)), BACKWARD),
        ),
        wrap=groups("a", "c", ROOT),
    ),
    "resets_nothing": diverges(
        "gradient",
        at=6,
        schedule=(
            KEEP,
            FORWARD,
            BACKWARD,
            ops.Abort(target="a"),
            ALL_REDUCE,
            AGAIN,
            BACKWARD,
            STEP,
        ),
        mesh=Mesh(replicate=2, shard=1),
    ),
    "one_unit_wrong_gradient": diverges("gradient", comparison="exact", case=EXACT),
    "missing_gradient": diverges("gradient/missing", name="a.weight"),
    "unexpected_gradient": diverges("gradient/unexpected", freezes=FROZEN),
    "wrong_step": diverges("parameter"),
    "moved_frozen_parameter": diverges("parameter", freezes=FROZEN),
    "wrong_registered_parameter": diverges(
        "registered_parameter", at=FORWARD_AT, name="a.bias", wrap=groups("a", ROOT, reshard=False)
    ),
    "wrong_buffer": diverges(
        "buffer", at=FORWARD_AT, name="n.running_mean", model=WITH_BUFFERS, wrap=groups("n", ROOT)
    ),
    "zeroes_buffers_of_no_state_dict": diverges(
        "buffer",
        at=FORWARD_AT,
        name="c.factors",
        model=chain(a=Linear(out=4), c=Constant()),
        wrap=groups(ROOT),
    ),
    "not_resharded": diverges("registration"),
    "stays_unsharded_after_backward": diverges(
        "output", at=AGAIN_AT, schedule=TWO_STEPS, wrap=groups("a", "b")
    ),
    "lost_requires_grad": diverges("registration", at=BEFORE_THE_FIRST_OP),
    "gathers_twice": diverges("communication", wrap=groups("a", "b", ROOT, reshard=False)),
    "reshards_in_recomputation": diverges(
        "communication",
        wrap=groups("a", "b", ROOT),
        checkpoints=(Checkpoint(module="", implementation="utils"),),
        engines=("fully_shard",),
    ),
    "gathers_for_nobody": diverges("communication", at=FORWARD_AT),
    "gathers_in_another_order_at_last": diverges(
        "communication", at=2 * len(ONE_STEP), schedule=ONE_STEP * 3, wrap=groups("a", "b", ROOT)
    ),
    "reduces_frozen_parameters": diverges(
        "communication", name="reduce-scatters", freezes=(Freeze(target="a.weight"),)
    ),
    "late_post_backward": diverges("hooks", name="a"),
    "fsdp1_late_reshard": diverges("hooks", freezes=FROZEN, engines=("fsdp1",)),
    "extra_collective": diverges("collectives", at=STEP_AT),
    "diverging_replicas": diverges("replicas", at=STEP_AT, mesh=Mesh(replicate=2, shard=2)),
    "restores_zeroed_gradients": diverges(
        "gradient", at=5, schedule=(FORWARD, BACKWARD, STEP, AGAIN, ZERO, BACKWARD, STEP)
    ),
    "stale_state_dict": diverges(
        "state_dict", at=STEP_AT + 1, name="a.bias", schedule=(ops.TakeStateDict(), *TWO_STEPS)
    ),
    "state_dict_copies_in_inference": diverges(
        "state_dict",
        at=STEP_AT + 1,
        name="a.bias",
        schedule=(ops.TakeStateDict(inference=True), *TWO_STEPS),
        engines=("ddp",),  # DTensor has a bug there
    ),
    "optimizer_not_loaded": diverges("resume", schedule=resuming("dcp", "zero"), optimizer=ADAM),
    "broadcast_keeps_own_values": diverges(
        "resume",
        schedule=(
            *(FORWARD, BACKWARD, STEP, ZERO),
            ops.SaveState(options=("full_state_dict", "broadcast_from_rank0")),
            *(ops.CorruptState(), ops.LoadState()),
        ),
        optimizer=ADAM,
        engines=("fully_shard",),
    ),
    "makes_states_by_a_real_step": diverges(
        "parameter",
        at=0,
        schedule=(ops.SaveState(via="get_state_dict"), *ONE_STEP),
        optimizer=Optimizer(momentum=0.5),
    ),
    "states_have_what_is_frozen": diverges(
        "state_dict/unexpected",
        at=0,
        name="a.bias",
        schedule=(ops.TakeStateDict(options=("ignore_frozen_params",)), *ONE_STEP),
        freezes=(Freeze(target="a.bias"),),
        engines=("fully_shard",),
    ),
    "saves_later_than_it_says": diverges(
        "parameter",
        at=9,
        schedule=(
            *(FORWARD, BACKWARD, STEP, ZERO, ops.SaveState(asynchronous=True)),
            *(AGAIN, BACKWARD, STEP, ops.WaitForSave(), ops.LoadState(), FORWARD),
        ),
        engines=("fully_shard",),
    ),
    "optimizer_state_lost": diverges(
        "resume/missing", schedule=resuming("state_dict", "rebuild"), optimizer=ADAM
    ),
    "not_corrupted": diverges(
        "resume", at=LOAD_AT - 1, name="a.bias", schedule=resuming("state_dict", "zero")
    ),
    "minimizes_shards": diverges("parameter", optimizer=Optimizer(maximize=True)),
    "shards_stay_scaled": diverges("parameter", optimizer=Optimizer(grad_scaler="finite")),
    "unscales_shards_twice": diverges(
        "parameter",
        at=STEP_AT + 1,
        schedule=(FORWARD, BACKWARD, ops.Unscale(), STEP),
        optimizer=Optimizer(grad_scaler="finite"),
    ),
    "infinite_shards_are_stepped": diverges(
        "parameter", optimizer=Optimizer(grad_scaler="infinite")
    ),
    "overflows_are_seen_by_one_rank": diverges(
        "parameter",
        at=STEP_AT + 1,
        schedule=(FORWARD, BACKWARD, ops.Overflow(), STEP),
        optimizer=Optimizer(grad_scaler="finite"),
    ),
    "clips_shards_that_are_not_finite": diverges(
        "norm/unexpected",
        at=3,
        name="norm",
        schedule=(
            *(FORWARD, BACKWARD, ops.Unscale()),
            *(ops.ClipGradNorm(max_norm=0.1, error_if_nonfinite=True), STEP),
        ),
        optimizer=Optimizer(grad_scaler="infinite"),
    ),
    "rmsprop_goes_too_far": diverges("parameter", optimizer=Optimizer(kind="rmsprop")),
    "fused_steps_of_shards_are_lost": diverges(
        "parameter", optimizer=Optimizer(kind="adamw", flags=("fused",))
    ),
    "all_groups_of_shards_decay": diverges(
        "parameter", optimizer=Optimizer(weight_decay=0.125, flags=("vectors_apart",))
    ),
    "shards_step_without_nesterov": diverges(
        "parameter", optimizer=Optimizer(momentum=0.5, flags=("nesterov",))
    ),
    "largest_moments_of_shards_are_lost": diverges(
        "optimizer_state",
        at=STEP_AT,
        name="max_exp_avg_sq of a.bias",
        optimizer=Optimizer(kind="adam", flags=("amsgrad",)),
    ),
    "shards_are_not_centered": diverges(
        "optimizer_state",
        at=STEP_AT,
        name="grad_avg of a.bias",
        optimizer=Optimizer(kind="rmsprop", flags=("centered",)),
    ),
    "last_gradients_of_shards_are_lost": diverges(
        "optimizer_state",
        at=STEP_AT,
        name="prev of a.bias",
        optimizer=Optimizer(kind="rprop"),
    ),
    "orthogonalizes_shards": diverges("parameter", name="a.weight", optimizer=MUON),
    "checkpoints_have_one_optimizer": diverges(
        "resume", schedule=resuming("dcp", "zero"), optimizer=BESIDE, engines=("fully_shard",)
    ),
    "steps_with_the_first_rate": diverges(
        "parameter", at=len(TWO_STEPS) - 1, schedule=TWO_STEPS, optimizer=HALVED
    ),
    "flat_states_have_one_rate": diverges(
        "parameter",
        at=LOAD_AT + 3,
        schedule=resuming("dcp", "zero", "flatten_optimizer_state_dict"),
        engines=("fully_shard",),
        optimizer=Optimizer(weight_decay=0.125, flags=("vectors_apart",)),
    ),
    "numbers_are_set_on_one_rank": diverges(
        "parameter",
        at=LOAD_AT + 3,
        schedule=resuming("dcp", "zero", "full_state_dict", "cpu_offload", "broadcast_from_rank0"),
        engines=("fully_shard",),
        optimizer=ADAM,
    ),
    "rate_not_loaded": diverges(
        "parameter", at=LOAD_AT + 3, schedule=resuming("dcp", "rebuild"), optimizer=HALVED
    ),
    "reads_shards_from_their_beginning": diverges(
        "parameter",
        at=LOAD_AT,
        schedule=(*(FORWARD, BACKWARD, STEP, ZERO, ops.SaveState()), *ON_SHARDS, AGAIN),
        mesh=Mesh(replicate=2, shard=1),
    ),
    "ddp_wrong_gradient": diverges("gradient", engine="ddp"),
    "ddp_detaches_input_gradients": diverges(
        "gradient", engine="ddp", name="a.weight", loss="gradient_penalty"
    ),
    "ddp_no_sync_syncs": diverges(
        "local_gradient",
        engine="ddp",
        at=2,
        name="a.bias",
        schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP),
    ),
    "ddp_no_sync_ends_once": diverges(
        "local_gradient",
        engine="ddp",
        at=2,
        name="a.bias",
        schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP),
        ddp=DDP(no_sync="again"),
    ),
    "ddp_no_sync_survives_errors": diverges(
        "gradient", engine="ddp", ddp=DDP(no_sync="left_by_error")
    ),
    "ddp_one_bucket_reduced": diverges("gradient", engine="ddp", ddp=DDP(buckets="one_each")),
    "ddp_keeps_initial_values": diverges("output", engine="ddp", ddp=DDP(initial="first_rank")),
    "ddp_clones_no_outputs": Planted(
        make_case(loss="doubled_in_place", engines=("ddp",)),
        "crash/ddp/RuntimeError in <module>",
        FORWARD_AT,
        comparison="invariant",
        status=Status.CRASH,
    ),
    "ddp_compresses_no_gradients": diverges("gradient", engines=("ddp",), ddp=DDP(hook="fp16")),
    "ddp_keeps_buffers": diverges(
        "buffer",
        at=4,
        name="n.running_mean",
        model=chain(n=BatchNorm(), a=Linear(out=3)),
        schedule=(*TWO_STEPS, FORWARD),
        engines=("ddp",),
        ddp=DDP(buffers="broadcast"),
    ),
    "ddp_broadcasts_what_was_a_buffer": diverges(
        "output",
        at=4,
        model=chain(s=RunningSum(persistent=False), a=Linear(out=3)),
        schedule=(*TWO_STEPS, FORWARD),
        engines=("ddp",),
        ddp=DDP(buffers="broadcast"),
    ),
    "accumulates_with_fewer_bits": diverges(
        "unreduced_gradient",
        at=4,
        name="a.bias",
        case=in_precision(
            Precision(param="bfloat16", reduce="float32"),
            schedule=(NO_SYNC, FORWARD, BACKWARD, AGAIN, BACKWARD, SYNC, FORWARD, BACKWARD, STEP),
            mesh=3,
        ),
    ),
    "keeps_unsharded_gradient": diverges(
        "unreduced_gradient/unexpected", at=BACKWARD_AT, name="a.weight"
    ),
    "keeps_unsharded_memory": diverges("leak/memory", name="unsharded a.bias"),
    "keeps_reduction_inputs": diverges("leak/reduction", name="reduction of a"),
    "leaves_a_hook": diverges("leak/hook", name="_forward_hooks of a"),
    "keeps_every_model": diverges("leak/survivor", name="the model"),
    "misplaced_optimizer_state": diverges("leak/layout", name="exp_avg of a.bias", optimizer=ADAM),
    "offloaded_gradient_lost": diverges(
        "gradient", wrap=(WrapGroup(modules=(ROOT,), offload="unpinned"),)
    ),
    "extensions_get_the_first_gather": diverges(
        "output",
        at=AGAIN_AT,
        schedule=TWO_STEPS,
        wrap=(WrapGroup(modules=(ROOT,), all_gather_extension="signs_apart"),),
    ),
    "trains_what_was_gathered": diverges(
        "parameter",
        wrap=(WrapGroup(modules=(ROOT,), all_gather_extension="float8"),),
        inputs=PLAIN,
    ),
    "other_dim_wrong_gradient": diverges(
        "gradient",
        name="a.weight",
        model=chain(a=Linear(out=4), b=Linear(out=2)),
        wrap=(WrapGroup(modules=(ROOT,), shard_dim="last"),),
        inputs=float_inputs(4),
    ),
    "shards_by_number_in_the_world": diverges("output", mesh=Mesh(shard=2, made="reversed")),
    "draws_on_the_first_rank": diverges(
        "output", wrap=(WrapGroup(modules=(ROOT,), drawn="kaiming_uniform_"),)
    ),
    "prefetch_gathers_zeros": diverges(
        "output", wrap=(WrapGroup(modules=("a",), forward_prefetch=("b",)), *groups("b", ROOT))
    ),
    "reduce_dtype_ignored": diverges(
        "communication",
        name="reduce-scatters",
        case=in_precision(Precision(param="bfloat16", reduce="float32")),
    ),
    "reduces_digits_of_bfloat16": diverges(
        "gradient",
        name="a.bias",
        comparison="exact",
        case=in_precision(Precision(param="bfloat16", reduce="float32"), values="apart", mesh=2),
    ),
    "stale_low_precision_copy": diverges(
        "output",
        at=AGAIN_AT,
        comparison="precision",
        case=in_precision(Precision(param="bfloat16"), schedule=TWO_STEPS),
    ),
    "output_dtype_ignored": diverges(
        "module_input",
        at=FORWARD_AT,
        name="input 0 0 of b",
        comparison="precision",
        case=in_precision(Precision(param="bfloat16", output="float32")),
    ),
    "divide_factor_ignored": diverges(
        "gradient", at=2, schedule=(ops.SetDivideFactor(factor=4.0), FORWARD, BACKWARD)
    ),
    "unshard_registers_nothing": diverges(
        "registration", schedule=(ops.Unshard(), FORWARD, BACKWARD)
    ),
    "reshard_does_nothing": diverges(
        "registration", at=1, schedule=(FORWARD, ops.Reshard(), BACKWARD), wrap=groups(ROOT)
    ),
    "reshard_flag_ignored": diverges(
        "registration",
        at=1,
        schedule=(ops.SetFlag(flag="reshard_after_forward", value=True), FORWARD, BACKWARD),
        wrap=groups(ROOT),
    ),
    "compiled_wrong_output": diverges("output", compile="eager", wrap=groups(ROOT)),
    "zero_redundancy_does_not_broadcast": diverges("parameter", engines=("zero_redundancy",)),
    "wrong_optimizer_state": diverges(
        "optimizer_state", at=STEP_AT, name="exp_avg_sq of a.bias", optimizer=ADAM
    ),
    "clips_shards_at_twice_the_value": diverges(
        "gradient", at=2, schedule=(FORWARD, BACKWARD, ops.ClipGradValue(clip_value=0.01), STEP)
    ),
    "clips_by_the_norm_of_a_tensor_parallel_shard": diverges(
        "norm",
        at=2,
        name="norm",
        case=msgspec.structs.replace(
            IN_PARALLEL, schedule=(FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.1), STEP)
        ),
    ),
    "clips_by_the_norm_of_a_shard": diverges(
        "norm",
        at=2,
        name="norm",
        schedule=(FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.1), STEP),
    ),
    "fsdp1_counts_whole_gradients_on_every_rank": diverges(
        "norm",
        at=2,
        name="norm",
        schedule=(FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=8.0), STEP),
        engines=("fsdp1",),
        fsdp1=FSDP1(strategy="mixed"),
    ),
    "takes_the_norm_of_a_shard": diverges(
        "norm",
        at=2,
        name="norm",
        schedule=(FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.1, apart=True), STEP),
    ),
    "clips_by_the_largest_element_of_a_shard": diverges(
        "norm",
        at=2,
        name="norm",
        schedule=(FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.1, norm_type="inf"), STEP),
    ),
    "tp_sums_in_low_precision": diverges(
        "communication",
        name="sums over tensor-parallel ranks",
        model=chain(a=Linear(out=4), n=LayerNorm(), b=Linear(out=4)),
        mesh=Mesh(shard=1, tensor=2),
        inputs=float_inputs(seq=4),
        tensor_parallel=(
            rowwise("a", input="replicate", output="sequence"),
            TensorParallel(module="n", style="sequence", local_output=False),
            colwise("b", input="sequence", output="replicate"),
        ),
        wrap=(
            WrapGroup(modules=(ROOT,), precision=Precision(param="bfloat16", reduce="float32")),
        ),
    ),
    "tp_output_not_summed": diverges("output", case=IN_PARALLEL),
    "negative_dims_begin_at_the_front": diverges("output", case=OF_DTENSORS),
    "hinted_gradients_are_parts": diverges(
        "input_gradient",
        at=BACKWARD_AT,
        name="input 0 of batch 0",
        case=msgspec.structs.replace(
            OF_DTENSORS,
            tensor_parallel=tuple(
                msgspec.structs.replace(plan, grad_placements=True)
                for plan in OF_DTENSORS.tensor_parallel
            ),
        ),
    ),
    "parts_of_gradients_are_wholes": diverges(
        "gradient",
        name="n.bias",
        model=chain(a=Linear(out=3), n=LayerNorm()),
        mesh=Mesh(shard=1, tensor=2),
        tensor_parallel=(TensorParallel(module="n", style="dtensor", dim=0, local_map=True),),
    ),
    "shared_classes_are_normalized_apart": diverges(
        "loss",
        at=FORWARD_AT,
        name="loss",
        case=msgspec.structs.replace(IN_PARALLEL, engines=("fully_shard",), loss="loss_parallel"),
    ),
    "tp_one_unit_wrong_output": diverges(
        "output",
        comparison="exact",
        case=msgspec.structs.replace(
            IN_PARALLEL, values="dyadic", schedule=(FORWARD, BACKWARD, STEP)
        ),
    ),
    "tp_gradient_not_summed": diverges("gradient", name="n.bias", case=SEQUENCE_PARALLEL),
    "replicate_never_syncs": diverges("gradient", engines=("replicate",)),
    "divides_no_sum_of_microbatches": diverges(
        "gradient", at=2, case=in_stages(FORWARD, AGAIN, BACKWARD, STEP)
    ),
    "bounded_sends_overtake": diverges(
        "gradient", at=2, name="b.weight", case=looped(max_outstanding_sends=1)
    ),
    "outputs_come_along_the_first_dim": diverges("output", at=0, case=looped(merge_dim=1)),
    "inputs_split_along_a_dim_change_places": diverges(
        "output", at=0, case=looped(4, schedule_class="interleaved_1f1b", split_dim=-1)
    ),
    "waits_for_no_last_reduction": diverges(
        "gradient", at=2, case=looped(defer_reduce_grad_wait=True)
    ),
    "reduces_no_overlapped_stages": diverges(
        "gradient/missing", at=4, case=looped(4, schedule_class="dual_pipe_v")
    ),
    "given_microbatches_lose_their_targets": diverges(
        "loss", at=0, name="loss", case=looped(gives_microbatches=True)
    ),
    "losses_are_listed_backwards": diverges(
        "loss", at=0, name="loss", case=looped(returned="both")
    ),
    "outputs_that_nobody_wants_are_detached": diverges(
        "gradient", at=2, case=looped(returned="nothing")
    ),
    "unfinalized_gradients_are_lost": diverges(
        "gradient",
        at=7,
        case=in_stages(
            *(NO_SYNC, FORWARD, AGAIN, BACKWARD, SYNC),
            *(ops.Forward(batch=2), ops.Forward(batch=3), BACKWARD, STEP),
        ),
    ),
    "inactive_stages_lose_gradients": diverges(
        "gradient",
        at=4,
        case=looped(4, schedule_class="interleaved_1f1b", max_active_stages=1),
    ),
    "clips_by_the_norm_of_a_stage": diverges(
        "norm",
        at=3,
        name="norm",
        case=in_stages(FORWARD, AGAIN, BACKWARD, ops.ClipGradNorm(max_norm=0.1), STEP),
    ),
    "evaluations_end_training": diverges(
        "gradient/missing", at=4, case=in_stages(*UNTAPED, FORWARD, AGAIN, BACKWARD, STEP)
    ),
    "states_of_stages_are_not_loaded": diverges(
        "resume",
        at=7,
        case=msgspec.structs.replace(
            in_stages(
                *(FORWARD, AGAIN, BACKWARD, STEP, ZERO),
                *(ops.SaveState(), ops.CorruptState(), ops.LoadState(assign=True)),
            ),
            optimizer=ADAM,
        ),
    ),
    "experts_divide_by_their_ranks": diverges(
        "gradient",
        name="moe.grouped.weight",
        model=chain(a=Linear(out=4), moe=Experts(out=4, experts=4), b=Linear(out=3)),
        mesh=Mesh(replicate=1, shard=2),
        wrap=groups("moe", ROOT),
        engines=("expert_parallel", "fully_shard"),
    ),
    "other_meshes_are_not_reduced": diverges(
        "gradient/missing",
        name="moe.grouped.weight",
        model=chain(a=Linear(out=4), moe=Experts(out=4, experts=4), b=Linear(out=3)),
        mesh=Mesh(replicate=1, shard=2),
        wrap=groups(ROOT),
        engines=("expert_parallel", "fully_shard"),
    ),
    "attention_leaves_out_keys": diverges("output", case=ATTENDING),
    "positions_stay_balanced": diverges("output", case=ATTENDING),
    "ring_adds_no_half_gradients": diverges("gradient", name="sdpa.qkv.weight", case=ATTENDING),
    "replicas_add_up": diverges("gradient", case=WHOLE),
    "replicas_compute_with_first_values": diverges("output", at=AGAIN_AT, case=WHOLE),
    "replicas_gather": diverges("communication", at=FORWARD_AT, case=WHOLE),
    "replicas_stay_whole": diverges("registration", at=BACKWARD_AT, case=WHOLE),
    "spmd_gradient_is_averaged_twice": diverges("gradient", engines=("spmd", "fully_shard")),
    "spmd_forgets_replicas": diverges(
        "gradient", mesh=Mesh(replicate=2, shard=2), engines=("spmd", "fully_shard")
    ),
    "spmd_parts_are_added_up_before": diverges(
        "gradient", engines=("spmd", "fully_shard"), spmd=SPMD(inputs="sharded")
    ),
    "averaged_shards_are_sums": diverges("gradient", engines=("simple_fsdp", "fully_shard")),
    "fsdp1_wrong_gradient": diverges("gradient", case=BY_FSDP1),
    "fsdp1_missing_gradient": diverges("gradient/missing", case=BY_FSDP1),
    "fsdp1_wrong_output": diverges("output", case=BY_FSDP1),
    "fsdp1_stale_shard": diverges("parameter", case=BY_FSDP1),
    "fsdp1_state_dict_lacks_a_sign": diverges(
        "state_dict",
        at=0,
        name="a.bias",
        schedule=(ops.TakeStateDict(), *ONE_STEP),
        engines=("fsdp1",),
    ),
    "fsdp1_keeps_buffers": diverges(
        "buffer",
        at=0,
        name="c.factors",
        comparison="precision",
        model=chain(a=Linear(out=3), c=Constant()),
        engines=("fsdp1",),
        fsdp1=FSDP1(precision=Precision(buffer="bfloat16")),
    ),
    "fsdp1_no_sync_syncs": diverges(
        "local_gradient",
        at=2,
        name="a.bias",
        schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP),
        engines=("fsdp1",),
    ),
    "fsdp1_warns_needlessly": diverges(
        "warning", at=AGAIN_AT, schedule=TWO_STEPS, engines=("fsdp1",), fsdp1=FSDP1(debug="detail")
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
        make_case(), "crash/ddp/KeyError in ddp_raises", FORWARD_AT, status=Status.CRASH
    ),
    "gathers_too_few_stages": Planted(
        looped(unshard_lookahead="one"),
        "crash/pipelining/AssertionError in _assert_unsharded",
        2,
        status=Status.CRASH,
    ),
    "whole_states_are_sharded": Planted(
        make_case(
            schedule=(ops.TakeStateDict(options=("full_state_dict",)), *ONE_STEP),
        ),
        f"{RAISED}/AssertionError in whole",
        0,
        status=Status.CRASH,
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
        return four_ranks.run(case, mends=(str(planting_mend(tmp_path, fault)),))

    return run


@contextlib.contextmanager
def faulty_world(fault: str, case: Case) -> Iterator[World]:
    config = WorldConfig(size=case.mesh.size, preload=(str(fault_file(fault)),))
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
    skip_if_torch_lacks(planted.case)
    verdict = faulty(fault, planted.case)
    assert_found(verdict, planted)
    assert verdict.findings[0].comparison == planted.comparison


FAULTS_BY_CASE = {planted.case: fault for fault, planted in (DIVERGENCES | CRASHES).items()}


@pytest.mark.parametrize("case", FAULTS_BY_CASE.keys(), ids=FAULTS_BY_CASE.values())
def test_a_case_passes_without_its_faults(four_ranks: World, case: Case) -> None:
    assert four_ranks.run(case).status is Status.PASS


@pytest.mark.parametrize(("fault", "planted"), CRASHES.items(), ids=CRASHES.keys())
def test_a_planted_crash_is_found_and_the_world_works_again(fault: str, planted: Planted) -> None:
    skip_if_torch_lacks(planted.case)
    with faulty_world(fault, planted.case) as world:
        world.start()
        before = world.pids
        verdict = world.run(planted.case)
        assert_found(verdict, planted)
        assert world.run(healthy(planted.case, verdict.findings[0].engine)).status is Status.PASS
        assert not set(world.pids) & set(before)


NO_DDP_OPTIONS: dict[str, Any] = {"ddp": DDP()}
PLAIN_OPTIMIZER: dict[str, Any] = {"optimizer": Optimizer()}
PLAIN_STEP: dict[str, Any] = {"schedule": ONE_STEP}
CLIPPED = (ops.ClipGradNorm(max_norm=0.1), STEP)
NEGATED = WrapGroup(modules=(ROOT,), all_gather_extension="negated")
HARMLESS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("replicas_add_up", {"engines": ("fully_shard",)}),
    ("replicas_stay_whole", {"engines": ("fully_shard",)}),
    ("ddp_one_bucket_reduced", NO_DDP_OPTIONS),
    ("ddp_keeps_initial_values", NO_DDP_OPTIONS),
    ("ddp_clones_no_outputs", {"loss": "dot"}),
    ("ddp_keeps_buffers", NO_DDP_OPTIONS),
    ("ddp_broadcasts_what_was_a_buffer", NO_DDP_OPTIONS),
    ("ddp_broadcasts_what_was_a_buffer", {"model": chain(s=BatchNorm(), a=Linear(out=3))}),
    ("clips_by_the_largest_element_of_a_shard", {"schedule": (FORWARD, BACKWARD, *CLIPPED)}),
    (
        "clips_shards_that_are_not_finite",
        {"schedule": (FORWARD, BACKWARD, ops.Unscale(), *CLIPPED)},
    ),
    ("frozen_matrices_take_gradients", {"freezes": ()}),
    ("frozen_matrices_take_gradients", {"freezes": (Freeze(target="b"),)}),
    ("freezes_added_modules", {"ignored_by": "argument"}),
    ("extensions_get_the_first_gather", {"wrap": groups(ROOT)}),
    ("restores_zeroed_gradients", {"schedule": TWO_STEPS}),
    ("minimizes_shards", PLAIN_OPTIMIZER),
    ("rmsprop_goes_too_far", PLAIN_OPTIMIZER),
    ("fused_steps_of_shards_are_lost", {"optimizer": Optimizer(kind="adamw")}),
    ("all_groups_of_shards_decay", {"optimizer": Optimizer(weight_decay=0.125)}),
    ("shards_step_without_nesterov", {"optimizer": Optimizer(momentum=0.5)}),
    ("shards_are_not_centered", {"optimizer": Optimizer(kind="rmsprop")}),
    ("orthogonalizes_shards", PLAIN_OPTIMIZER),
    ("steps_with_the_first_rate", PLAIN_OPTIMIZER),
    ("rate_not_loaded", PLAIN_OPTIMIZER),
    ("checkpoints_have_one_optimizer", PLAIN_OPTIMIZER),
    ("shards_stay_scaled", PLAIN_OPTIMIZER),
    ("infinite_shards_are_stepped", PLAIN_OPTIMIZER),
    ("weights_by_own_tokens", {"loss": "sum"}),
    ("weights_by_own_tokens", {"loss": "mean_square"}),
    ("ddp_detaches_input_gradients", {"loss": "dot"}),
    ("drops_hooks_of_users", PLAIN_STEP),
    ("drops_hooks_of_outputs", PLAIN_STEP),
    ("drops_hooks_of_parameters", PLAIN_STEP),
    ("drops_hooks_of_optimizers", PLAIN_STEP),
    ("average_of_shards_stays", PLAIN_STEP),
    ("trains_what_was_gathered", {"wrap": (NEGATED,)}),
    ("state_dict_copies_in_inference", {"schedule": (ops.TakeStateDict(), *TWO_STEPS)}),
)


@pytest.mark.parametrize(("fault", "changes"), HARMLESS)
def test_a_fault_shows_only_where_a_case_has_what_it_is_in(
    faulty: Faulty, fault: str, changes: dict[str, Any]
) -> None:
    case = msgspec.structs.replace(DIVERGENCES[fault].case, **changes)
    assert faulty(fault, case).status is Status.PASS


def test_a_rank_that_raises_is_named_and_its_peer_shows_where_it_waits() -> None:
    planted = CRASHES["raises_on_one_rank"]
    with faulty_world("raises_on_one_rank", planted.case) as world:
        verdict = world.run(planted.case)
    assert verdict.findings[0].rank == 1
    assert verdict.findings[0].observed == "ValueError: stream is not ready"
    assert "in raises_on_one_rank" in verdict.stacks["rank 1"]
    assert "all_gather" in verdict.stacks["rank 0"]


@pytest.mark.parametrize("fault", ["aborts_on_one_rank", "segfaults_on_one_rank"])
def test_a_rank_that_dies_leaves_the_stack_it_died_with(fault: str) -> None:
    with faulty_world(fault, CRASHES[fault].case) as world:
        verdict = world.run(CRASHES[fault].case)
    assert f"in {fault}" in verdict.stacks["rank 1"]


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
        assert "in sleeps_on_one_rank" in verdict.stacks["rank 1"]
        assert "all_gather" in verdict.stacks["rank 0"]
        assert world.run(healthy(case, "fully_shard")).status is Status.PASS
    assert four_ranks.run(case).status is Status.PASS


def test_a_doubled_gradient_is_found_in_half_precision_too(
    faulty: Faulty, four_ranks: World
) -> None:
    case = in_precision(Precision(param="bfloat16"), schedule=(FORWARD, BACKWARD), mesh=3)
    verdict = faulty("wrong_gradient", case)
    assert_found(verdict, diverges("gradient", case=case))
    assert verdict.comparison == "precision"
    assert four_ranks.run(case).status is Status.PASS


def test_an_error_of_a_few_units_that_stays_in_float64_is_found(faulty: Faulty) -> None:
    case = make_case(schedule=(FORWARD, BACKWARD), mesh=4)
    assert_found(faulty("slightly_wrong_gradient", case), diverges("gradient", case=case))


def test_what_an_order_of_summation_explains_is_no_finding_where_orders_differ(
    faulty: Faulty,
) -> None:
    case = make_case(mesh=4)
    verdict = faulty("one_unit_wrong_gradient", case)
    assert (verdict.status, verdict.comparison) == (Status.PASS, "bounded")


def test_a_rounding_unit_is_a_finding_before_the_first_op_that_rounds(
    faulty: Faulty, four_ranks: World
) -> None:
    """The step does, by a learning rate that is no power of two; what comes before it is exact."""
    case = msgspec.structs.replace(EXACT, optimizer=Optimizer(lr=0.1))
    assert_found(faulty("one_unit_wrong_gradient", case), diverges("gradient", case=case))
    assert four_ranks.run(case).status is Status.PASS


@pytest.mark.parametrize(
    ("planted", "schedule", "oracle"),
    [
        (("reference_wrong_gradient",), (FORWARD, BACKWARD, STEP), "gradient"),
        (("wrong_gradient", "ddp_wrong_gradient"), (FORWARD, BACKWARD, STEP), "gradient"),
        (("checkpoints_load_twice_the_values",), resuming("dcp", "zero"), "parameter"),
    ],
    ids=("in the reference", "the same in two engines", "in code that two engines share"),
)
def test_engines_that_agree_against_the_reference_are_a_finding(
    planted: tuple[str, ...], schedule: tuple[Op, ...], oracle: str
) -> None:
    case = make_case(schedule=schedule)
    preload = tuple(str(fault_file(fault)) for fault in planted)
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
    assert verdict.signature == "divergence/fully_shard/output"
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
    source = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert set(faults()) - set(re.findall(r'"(\w+)"', source)) == set()
