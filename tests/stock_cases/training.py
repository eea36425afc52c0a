"""Schedules, optimizers and losses."""

from __future__ import annotations

from typing import get_args

from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    ZERO,
    chain,
    graph,
    groups,
)

from fuzzshard.case.case import Checkpoint, Freeze, Inputs, Mesh, Optimizer, TensorSpec
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import (
    AddParamGroup,
    Backward,
    Forward,
    RegisterHook,
    RegisterParameterHook,
    RegisterStepHook,
    Reshard,
    SetFlag,
    SetGradEnabled,
    SetMode,
    ZeroGrad,
)
from fuzzshard.parts.ops.register_hook import Hook
from fuzzshard.parts.ops.register_step_hook import Hook as OfSteps
from stock_cases.stock import bitwise, bounded, flag, imprecise

PAST_DDP = "not applicable: a forward does not go through the DDP wrapper"
PARTIAL = "not applicable: a flag for some modules only, which no_sync() cannot express"
_TWO_HEADS = graph(
    "h = a(x)",
    "y = b(h)",
    "z = c(h)",
    outputs="y z",
    returns="tuple",
    a=Linear(out=4),
    b=Linear(out=3),
    c=Linear(out=2),
)
SWITCHED = "not applicable: gradient sync is switched between a forward and its backward"
HOOKED = (
    "not applicable: register_hook on a sharded parameter: gradients arrive at the unsharded one"
)
RETAINED = (
    "not applicable: a second backward of a forward, of which the first one is synchronised "
    "(https://github.com/pytorch/pytorch/issues/47260)"
)
STEPPED = "not applicable: a step within the backward, before DDP has averaged what it takes"
UNSYNCED = "not applicable: gradients that were not synchronised are used or zeroed"

_NO_SYNC = flag("requires_gradient_sync", False), flag("requires_gradient_sync", True)
_NO_ALL_REDUCE = flag("requires_all_reduce", False), flag("requires_all_reduce", True)
_NOT_LAST = flag("is_last_backward", False), flag("is_last_backward", True)
_NO_RESHARD = flag("reshard_after_backward", False), flag("reshard_after_backward", True)


def _accumulated(*flags: tuple[SetFlag, SetFlag]) -> tuple[Op, ...]:
    """Two microbatches, the first one with the flags as their first value says, then a plain
    step.
    """
    off, on = (tuple(ops) for ops in zip(*flags, strict=True)) if flags else ((), ())
    return (*off, FORWARD, BACKWARD, *on, AGAIN, BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP)


SCHEDULES = {
    "no zero_grad between steps": bounded(None, (FORWARD, BACKWARD, STEP, AGAIN, BACKWARD, STEP)),
    "gradients zeroed in place": bounded(
        None, (FORWARD, BACKWARD, STEP, ZeroGrad(set_to_none=False), AGAIN, BACKWARD, STEP)
    ),
    "microbatches on two ranks": bounded(None, _accumulated()),
    "microbatches on four ranks": bounded(None, _accumulated(), mesh=4),
    "a forward within autocast": imprecise(
        None, (Forward(autocast="bfloat16"), BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP)
    ),
    "a forward that saves copies": bounded(
        None, (Forward(copies_saved=True), BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP)
    ),
    "users' hooks": bounded(
        None,
        (
            *(RegisterHook(hook=hook, target="a") for hook in get_args(Hook)),
            *TWO_STEPS,
        ),
    ),
    "parameters that the optimizer gets later": bounded(
        None,
        (FORWARD, BACKWARD, STEP, ZERO, AddParamGroup(target="a"), AGAIN, BACKWARD, STEP),
        optimizer=Optimizer(kind="adam", exclude=("a",)),
    ),
    "two backwards through one graph": bounded(
        None,
        (FORWARD, Backward(retain_graph=True), BACKWARD, STEP, ZERO, AGAIN, BACKWARD, STEP),
        ddp=RETAINED,
    ),
    "two losses of one forward": bounded(
        _TWO_HEADS,
        (
            *(FORWARD, Backward(retain_graph=True, outputs=(0,)), Backward(outputs=(1,)), STEP),
            *(ZERO, AGAIN, Backward(retain_graph=True, outputs=(1,)), BACKWARD, STEP),
        ),
        ddp=RETAINED,
    ),
    "users' hooks on gradients that come": bounded(
        None,
        (RegisterParameterHook(hook="tensor_hook", target="a.weight"), *TWO_STEPS),
        notes={"fully_shard": HOOKED},
    ),
    "users' hooks on gradients that have accumulated": bounded(
        None,
        (
            RegisterParameterHook(hook="post_accumulate_grad_hook", target="a.weight"),
            *(FORWARD, BACKWARD, AGAIN, BACKWARD, STEP),
        ),
    ),
    "steps within backwards": bounded(
        None,
        (
            *(
                RegisterParameterHook(hook="step_in_backward", scale=0.125, target=target)
                for target in ("a.weight", "a.bias", "b.weight", "b.bias")
            ),
            *(FORWARD, BACKWARD, AGAIN, BACKWARD, STEP),
        ),
        ddp=STEPPED,
    ),
    "users' hooks on optimizers": bounded(
        None, (*(RegisterStepHook(hook=hook) for hook in get_args(OfSteps)), *TWO_STEPS)
    ),
    "an evaluation in inference mode": bounded(
        None, (FORWARD, BACKWARD, STEP, Forward(grad=False, inference=True), AGAIN, BACKWARD, STEP)
    ),
    "no sync": bounded(None, _accumulated(_NO_SYNC)),
    "no sync on hsdp": bounded(None, _accumulated(_NO_SYNC), mesh=Mesh(replicate=2, shard=2)),
    "no sync in one group": bounded(
        None,
        _accumulated(
            (flag("requires_gradient_sync", False, "a"), flag("requires_gradient_sync", True, "a"))
        ),
        ddp=PARTIAL,
    ),
    "no sync in the root alone": bounded(
        None,
        _accumulated(
            (
                flag("requires_gradient_sync", False, recurse=False),
                flag("requires_gradient_sync", True, recurse=False),
            )
        ),
        wrap=groups("a", ROOT),
        ddp=PARTIAL,
    ),
    "no all-reduce on hsdp": bounded(
        None, _accumulated(_NO_ALL_REDUCE), mesh=Mesh(replicate=2, shard=2)
    ),
    "no all-reduce without replicas": bounded(None, _accumulated(_NO_ALL_REDUCE)),
    "sync switched between forward and backward": bounded(
        None,
        (FORWARD, _NO_SYNC[0], BACKWARD, _NO_SYNC[1], AGAIN, BACKWARD, STEP),
        ddp=SWITCHED,
    ),
    "a step on unsynchronised gradients": bounded(
        None,
        (_NO_SYNC[0], FORWARD, BACKWARD, STEP, ZERO, _NO_SYNC[1], AGAIN, BACKWARD, STEP),
        ddp=UNSYNCED,
    ),
    "not the last backward": bounded(None, _accumulated(_NOT_LAST)),
    "no reshard after backward": bounded(None, _accumulated(_NO_RESHARD)),
    "not last and no reshard": bounded(None, _accumulated(_NO_RESHARD, _NOT_LAST)),
    "gradients disabled between microbatches": bounded(
        None,
        (
            *(FORWARD, BACKWARD, SetGradEnabled(enabled=False), Forward(batch=2, grad=False)),
            *(SetGradEnabled(enabled=True), FORWARD, BACKWARD, STEP),
        ),
    ),
    "training in eval mode": bitwise(
        chain(a=Linear(out=4), n=BatchNorm(), d=Dropout()),
        (SetMode(train=False), *TWO_STEPS),
    ),
    "a forward between backward and step": bitwise(
        None,
        (
            *(FORWARD, BACKWARD, Forward(batch=2, grad=False), Reshard(), STEP, ZERO),
            *(FORWARD, BACKWARD, STEP),
        ),
    ),
    "a forward of a part, after the root ran": bitwise(
        None,
        (
            FORWARD,
            BACKWARD,
            STEP,
            ZERO,
            Forward(target="b"),
            BACKWARD,
            STEP,
            ZERO,
            FORWARD,
            BACKWARD,
            STEP,
        ),
        ddp=PAST_DDP,
    ),
}

OPTIONS = {
    "momentum": bitwise(optimizer=Optimizer(momentum=0.5)),
    "sgd with weight decay": bitwise(optimizer=Optimizer(weight_decay=0.125)),
    "sgd uphill": bitwise(optimizer=Optimizer(maximize=True)),
    "adam": bitwise(optimizer=Optimizer(kind="adam", lr=0.01)),
    "adam on four ranks": bounded(mesh=4, optimizer=Optimizer(kind="adam", lr=0.01)),
    **{
        kind: bitwise(optimizer=Optimizer(kind=kind, lr=0.01))
        for kind in ("rmsprop", "adadelta", "adamax", "nadam", "radam", "asgd", "adagrad", "rprop")
    },
    **{
        f"{kind} with {' and '.join(flags)}": bounded(
            optimizer=Optimizer(
                kind=kind, lr=0.01, momentum=momentum, weight_decay=decay, flags=flags
            )
        )
        for kind, momentum, decay, flags in (
            ("adamw", 0.0, 0.125, ("fused", "amsgrad", "tensor_lr")),
            ("adamw", 0.0, 0.125, ("vectors_apart",)),
            ("adam", 0.0, 0.125, ("decoupled_weight_decay", "other_numbers")),
            ("sgd", 0.5, 0.0, ("nesterov",)),
            ("sgd", 0.5, 0.0, ("dampening", "tensor_lr")),
            ("rmsprop", 0.5, 0.0, ("centered", "other_numbers")),
            ("rprop", 0.0, 0.0, ("other_numbers",)),
            ("asgd", 0.0, 0.0, ("other_numbers",)),
            ("adagrad", 0.0, 0.0, ("other_numbers",)),
        )
    },
    "adafactor": bitwise(optimizer=Optimizer(kind="adafactor", lr=0.01), engines=("ddp",)),
    "muon": bounded(optimizer=Optimizer(kind="muon", exclude=("a.bias", "b.bias"))),
    "double precision": bitwise(dtype="float64"),
    "double precision on four ranks": bounded(mesh=4, dtype="float64"),
    "dyadic values": bitwise(values="dyadic"),
    "loss sum": bitwise(loss="sum"),
    "loss mean square": bitwise(loss="mean_square"),
    "loss over tokens": bitwise(loss="token_mean"),
    "outputs doubled in place": bitwise(loss="doubled_in_place"),
    "a penalty on gradients of inputs": bitwise(
        loss="gradient_penalty",
        notes={
            "fully_shard": "not applicable: a backward through a backward, of which fully_shard "
            "promises nothing"
        },
    ),
    "a composable checkpoint": bitwise(checkpoints=(Checkpoint(module="a"),)),
    "a checkpoint wrapper": bitwise(
        checkpoints=(Checkpoint(module="b", implementation="wrapper"),)
    ),
    "a checkpoint of the root": bitwise(checkpoints=(Checkpoint(module=ROOT),)),
    "a checkpoint where the root is called": bitwise(
        checkpoints=(Checkpoint(module=ROOT, implementation="utils"),),
        engines=("fully_shard", "replicate"),
    ),
    "a checkpoint around a wrapped module that is not used": bitwise(
        graph(
            "h = a(x)", "k = b(h)", "y = c(h)", a=Linear(out=4), b=Linear(out=3), c=Linear(out=2)
        ),
        wrap=groups("b", ROOT),
        checkpoints=(Checkpoint(module=ROOT),),
    ),
    "a recomputation that ends before a group that nothing below it shards": bitwise(
        graph("y = a(x)", "k = b(x)", outputs="y", a=Linear(out=4), b=Linear(out=3)),
        (FORWARD, BACKWARD, FORWARD),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=5),)),
        wrap=groups("b"),
        freezes=(Freeze(target="b"),),
        checkpoints=(Checkpoint(module=ROOT, implementation="utils"),),
        engines=("fully_shard",),
    ),
    "a batch norm in a checkpoint where the root is called": bitwise(
        chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3)),
        checkpoints=(Checkpoint(module=ROOT, implementation="utils"),),
        engines=("fully_shard",),
    ),
    "a checkpointed batch norm": bitwise(
        chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3)),
        checkpoints=(Checkpoint(module="n"),),
    ),
    "fully_shard alone": bitwise(engines=("fully_shard",)),
    "ddp alone": bitwise(engines=("ddp",)),
}
