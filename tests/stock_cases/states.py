"""What happens to optimizers, dtypes and saved states between the steps."""

from __future__ import annotations

from typing import get_args

import msgspec
from cases import AGAIN, BACKWARD, FORWARD, STEP, TWO_STEPS, ZERO, float_inputs

from fuzzshard.case.case import Mesh, Optimizer
from fuzzshard.parts.op import Op, StateOption, Via
from fuzzshard.parts.ops import (
    Cast,
    ClipGradNorm,
    ClipGradValue,
    CorruptState,
    LoadState,
    Overflow,
    RunningAverage,
    SaveState,
    SetDivideFactor,
    SetFlag,
    SetGradDtype,
    SetRequiresGrad,
    TakeStateDict,
    Unscale,
    WaitForSave,
)
from fuzzshard.parts.ops.states import Stager
from stock_cases.stock import bitwise, bounded, imprecise

TRAIN: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO)
_NEXT: tuple[Op, ...] = (AGAIN, BACKWARD, STEP)
_ADAM = Optimizer(kind="adam", lr=0.01)
_FINITE = ClipGradNorm(max_norm=0.1, error_if_nonfinite=True)
_FACTOR = "not applicable: a divide factor, which only groups of fully_shard are told"

_RETYPED = (
    "not applicable: gradients of another dtype than that of the parameter, of which the engine "
    "says nothing"
)

_STATES: tuple[tuple[Via, tuple[StateOption, ...]], ...] = (
    ("stateful", ()),
    ("dcp", ("full_state_dict", "cpu_offload", "broadcast_from_rank0")),
    ("get_state_dict", ("full_state_dict",)),
    ("dcp", ("ignore_frozen_params", "not_strict")),
    ("dcp", ("flatten_optimizer_state_dict",)),
)

STATES = {
    **{
        f"gradients of {dtype or 'any dtype'} of {target or 'all parameters'}": imprecise(
            None,
            (
                SetGradDtype(target=target, dtype=dtype),
                *(SetFlag(flag="requires_gradient_sync", value=False), FORWARD, BACKWARD),
                *(SetFlag(flag="requires_gradient_sync", value=True), *TRAIN),
                *(SaveState(via="state_dict"), LoadState(assign=True), *_NEXT),
            ),
            optimizer=Optimizer(momentum=0.5, foreach=False),
            ddp=_RETYPED,
        )
        for target, dtype in (("a", "bfloat16"), ("b.weight", "float64"), ("", None))
    },
    "gradients of their dtype, though parameters are cast": bounded(
        None,
        (SetGradDtype(target="a", dtype="float32"), Cast(dtype="float64"), *TRAIN, *_NEXT),
        optimizer=Optimizer(foreach=False),
        ddp=_RETYPED,
    ),
    "a checkpoint after zeroing, and a state dict that follows": bitwise(
        None,
        (TakeStateDict(), *TRAIN, SaveState(), CorruptState(), LoadState(), *_NEXT),
        optimizer=msgspec.structs.replace(_ADAM, foreach=True),
    ),
    **{
        f"a state, {via}, {' and '.join(options) or 'as it is'}": bitwise(
            None,
            (*TRAIN, SaveState(via=via, options=options), CorruptState(), LoadState(), *_NEXT),
            optimizer=msgspec.structs.replace(_ADAM, foreach=False),
        )
        for via, options in _STATES
    },
    "a state before the first step, and a copy of one": bitwise(
        None,
        (TakeStateDict(options=("full_state_dict",)), SaveState(), *TRAIN),
        optimizer=Optimizer(momentum=0.5, foreach=False),
    ),
    "state dicts, assigned to a new model": bitwise(
        None,
        (
            *TRAIN,
            SaveState(via="state_dict"),
            CorruptState(how="rebuild"),
            LoadState(assign=True),
            *_NEXT,
        ),
        optimizer=msgspec.structs.replace(_ADAM, foreach=False),
        engines=("fully_shard",),
    ),
    "a checkpoint that is assigned, and then loaded into the states of that dtype": bounded(
        None,
        (*TRAIN, SaveState(), LoadState(assign=True), LoadState(), *_NEXT),
        optimizer=Optimizer(kind="nadam", lr=0.01),
        dtype="float64",
        engines=("fully_shard",),
    ),
    "a checkpoint that is written while training goes on": bitwise(
        None,
        (
            *(*TRAIN, SaveState(asynchronous=True), *_NEXT, ZERO, WaitForSave()),
            *(CorruptState(how="rebuild"), LoadState(), *_NEXT),
        ),
        optimizer=_ADAM,
        engines=("fully_shard", "ddp"),
    ),
    **{
        f"a checkpoint whose copies another stager makes, {stager}": bitwise(
            None,
            (
                *(*TRAIN, SaveState(asynchronous=True, stager=stager), CorruptState()),
                *(WaitForSave(), LoadState(), *_NEXT),
            ),
            optimizer=_ADAM,
            engines=("fully_shard", "ddp"),
        )
        for stager in get_args(Stager)
    },
    **{
        f"a scale that comes back with its model, via {via}": bitwise(
            None,
            (*TRAIN, SaveState(via=via), *_NEXT, CorruptState(), LoadState(), ZERO, *_NEXT),
            optimizer=Optimizer(grad_scaler="finite"),
            engines=("fully_shard", "ddp"),
        )
        for via in get_args(Via)
    },
    "a scale that was halved, and comes back to a new model": bitwise(
        None,
        (
            *(FORWARD, BACKWARD, Overflow(), STEP, ZERO, SaveState()),
            *(CorruptState(how="rebuild"), LoadState(), *_NEXT),
        ),
        optimizer=Optimizer(grad_scaler="finite"),
        engines=("fully_shard", "ddp"),
    ),
    "a checkpoint that a model on another mesh loads": bitwise(
        None,
        (
            *(*TRAIN, SaveState(asynchronous=True), WaitForSave()),
            *(CorruptState(how="rebuild", mesh=(2, 1)), LoadState(assign=True), *_NEXT, ZERO),
            *(SaveState(), CorruptState(how="rebuild", mesh=(2,)), LoadState(), *_NEXT),
        ),
        optimizer=_ADAM,
        engines=("fully_shard", "ddp"),
    ),
    "a learning rate that a checkpoint brings back to a new optimizer": bitwise(
        None,
        (*TRAIN, SaveState(), CorruptState(how="rebuild"), LoadState(), *_NEXT),
        optimizer=Optimizer(lr_scheduler="step_lr"),
        engines=("fully_shard",),
    ),
    **{
        f"a learning rate of {name}, assigned from state dicts": bitwise(
            None,
            (*TRAIN, SaveState(via="state_dict"), *_NEXT, LoadState(assign=True), *_NEXT),
            optimizer=msgspec.structs.replace(_ADAM, lr_scheduler=name),
            engines=("fully_shard",),
        )
        for name in ("cosine_annealing_lr", "one_cycle_lr")
    },
    "averages of the parameters, which take their place": bitwise(
        None,
        (RunningAverage(), *TRAIN, RunningAverage(copied=True), *_NEXT),
        optimizer=Optimizer(post_optim_event=True),
        engines=("fully_shard", "ddp"),
    ),
    **{
        f"losses that are scaled, {scale}": bitwise(
            None,
            TWO_STEPS,
            optimizer=Optimizer(grad_scaler=scale),
            engines=("fully_shard", "ddp"),
        )
        for scale in ("finite", "infinite")
    },
    **{
        f"gradients that are unscaled and clipped, {scale}": bounded(
            None,
            (FORWARD, BACKWARD, Unscale(), _FINITE, STEP),
            optimizer=Optimizer(grad_scaler=scale),
            engines=("fully_shard", "ddp"),
        )
        for scale in ("finite", "infinite")
    },
    **{
        f"an overflow in the {'last' if last else 'first'} gradient": bounded(
            None,
            (FORWARD, BACKWARD, Overflow(last=last), Unscale(), _FINITE, STEP),
            optimizer=Optimizer(grad_scaler="finite"),
            engines=("fully_shard", "ddp"),
        )
        for last in (False, True)
    },
    "two optimizers with one GradScaler": bounded(
        None,
        (FORWARD, BACKWARD, Unscale(), STEP),
        optimizer=Optimizer(exclude=("a",), beside="sgd", grad_scaler="infinite"),
        engines=("fully_shard", "ddp"),
    ),
    "gradients clipped one by one": bitwise(
        None, (FORWARD, BACKWARD, ClipGradValue(clip_value=0.125), STEP)
    ),
    "clipped gradients": bounded(None, (FORWARD, BACKWARD, ClipGradNorm(max_norm=0.1), STEP)),
    **{
        f"gradients clipped, foreach={foreach}, {'apart' if apart else 'at once'}": bounded(
            None,
            (FORWARD, BACKWARD, ClipGradNorm(max_norm=0.1, foreach=foreach, apart=apart), STEP),
        )
        for foreach in (True, False)
        for apart in (True, False)
    },
    "gradients clipped by their largest element": bounded(
        None, (FORWARD, BACKWARD, ClipGradNorm(max_norm=0.1, norm_type="inf"), STEP)
    ),
    "another divide factor, and a loss alone": bounded(
        None, (SetDivideFactor(factor=4.0), *TWO_STEPS), ddp=_FACTOR, observe="losses"
    ),
    "undivided gradients of a shard of everything": bounded(
        None,
        (SetDivideFactor(factor=1.0), *TWO_STEPS),
        ddp=_FACTOR,
        mesh=Mesh(replicate=2, shard=1),
    ),
    "equal inputs on all ranks, and an unfrozen module of the engines alone": bounded(
        None,
        (*TRAIN, SetRequiresGrad(target="a", value=False, engines_only=True), FORWARD),
        inputs=msgspec.structs.replace(float_inputs(), same_on_ranks=True),
        observe="losses",
    ),
}
