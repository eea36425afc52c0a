"""Hand-written cases that stock torch passes, by what each is about. Together they have every feature."""

from __future__ import annotations

import dataclasses

from cases import (
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
    float_inputs,
    groups,
    make_case,
    tensor_op,
)

from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Mesh, Optimizer, TensorSpec, Tie
from fuzzshard.case.graph import (
    MLP,
    Activation,
    Alias,
    Attention,
    BatchNorm,
    Block,
    Conv1d,
    Dropout,
    Embedding,
    LayerNorm,
    Leaf,
    Linear,
    RawParameter,
    RMSNorm,
)
from fuzzshard.case.schedule import (
    Backward,
    Flag,
    Forward,
    Op,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    ZeroGrad,
)

ONE_BY_ONE = "not applicable: several forwards have their backward one by one"
PAST_DDP = "not applicable: a forward does not go through the DDP wrapper"
PARTIAL = "not applicable: a flag for some modules only, which no_sync() cannot express"
SWITCHED = "not applicable: gradient sync is switched between a forward and its backward"
UNSYNCED = "not applicable: a step on gradients that were not synchronised"
UNFROZEN = "not applicable: a parameter frozen at construction is unfrozen: DDP never synchronises it"


@dataclasses.dataclass(frozen=True)
class Stock:
    """A case, whether every tensor must be bitwise equal, and why DDP is not judged (empty: it is)."""

    case: Case
    bitwise: bool = True
    ddp: str = ""


def bitwise(model: Block | None = None, schedule: tuple[Op, ...] = TWO_STEPS, **options) -> Stock:
    ddp = options.pop("ddp", "")
    return Stock(make_case(model, schedule, **options), True, ddp)


def bounded(model: Block | None = None, schedule: tuple[Op, ...] = TWO_STEPS, **options) -> Stock:
    ddp = options.pop("ddp", "")
    return Stock(make_case(model, schedule, **options), False, ddp)


def flag(name: Flag, value: bool, target: str = ROOT, *, recurse: bool = True) -> SetFlag:
    return SetFlag(flag=name, value=value, target=target, recurse=recurse)


def leaf(module: Leaf, *, seq: int = 0) -> Stock:
    """The leaf between two linear layers, so that its inputs have gradients and its gradients a source."""
    model = chain(before=Linear(out=4), leaf=module, after=Linear(out=3))
    return bitwise(model, inputs=float_inputs(seq=seq))


def joined(op: str, *args: str) -> Stock:
    """``op`` over the results of two linear layers that read one input."""
    model = Block(
        children=children(a=Linear(out=4), b=Linear(out=4), c=Linear(out=2)),
        nodes=(call("h", "a", "x"), call("k", "b", "x"), tensor_op("y", op, *args), call("z", "c", "y")),
        outputs=("z",),
    )
    return bounded(model)


LEAVES = {
    "linear": leaf(Linear(out=6)),
    "linear without bias": leaf(Linear(out=6, bias=False)),
    "linear of one feature": leaf(Linear(out=1)),
    "layer norm": leaf(LayerNorm()),
    "layer norm without bias": leaf(LayerNorm(bias=False)),
    "rms norm": leaf(RMSNorm()),
    "batch norm": leaf(BatchNorm()),
    "batch norm of a sequence": leaf(BatchNorm(), seq=3),
    "conv1d": leaf(Conv1d(out=6), seq=3),
    "conv1d without bias": leaf(Conv1d(out=6, bias=False), seq=3),
    "raw vector": leaf(RawParameter()),
    "raw matrix": leaf(RawParameter(matrix=True)),
    "mlp": leaf(MLP(hidden=6)),
    "mlp without biases": leaf(MLP(hidden=6, bias=False)),
    "attention": leaf(Attention(heads=2), seq=3),
    "dropout": leaf(Dropout()),
    "relu module": leaf(Activation()),
    "gelu module": leaf(Activation(fn="gelu")),
    "tanh module": leaf(Activation(fn="tanh")),
    "embedding": bitwise(
        chain(leaf=Embedding(vocab=7, dim=4), after=Linear(out=3)),
        inputs=Inputs(batch=2, tensors=(TensorSpec(kind="ids", size=7),)),
    ),
}

_PAIR = Block(
    children=children(a=Linear(out=4), b=Linear(out=3)),
    nodes=(call("h", "a", "x"), call("k", "b", "h")),
    outputs=("h", "k"),
    returns="tuple",
)


def _calls_pair(*used: str, returns: str = "tuple") -> Block:
    """A nested block with two results, of which the root reads those in ``used``."""
    pair = Block(children=_PAIR.children, nodes=_PAIR.nodes, outputs=_PAIR.outputs, returns=returns)
    return Block(
        children=children(pair=pair, c=Linear(out=2)),
        nodes=(call("p", "pair", "x"), tensor_op("y", "concat", *used), call("z", "c", "y")),
        outputs=("z",),
    )


GRAPHS = {
    "an addition": joined("add", "h", "k"),
    "an addition of three": joined("add", "h", "k", "h"),
    "a product": joined("mul", "h", "k"),
    "a concatenation": joined("concat", "h", "k"),
    "a detached value": joined("detach", "h"),
    "a relu between modules": joined("relu", "h"),
    "a tanh between modules": joined("tanh", "h"),
    "a residual around a module": bounded(
        Block(
            children=children(a=Linear(out=5)),
            nodes=(call("h", "a", "x"), tensor_op("y", "add", "x", "h")),
            outputs=("y",),
        )
    ),
    "a nested block with a tuple": bounded(_calls_pair("p.0", "p.1")),
    "a nested block with a dict": bounded(_calls_pair("p.0", "p.1", returns="dict")),
    "a nested block with an unread result": bounded(_calls_pair("p.1")),
    "an output that the loss ignores": bounded(
        Block(children=_PAIR.children, nodes=_PAIR.nodes, outputs=("h", "k"), returns="dict"),
        (Forward(outputs=(0,)), BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP),
    ),
    "a value that nothing reads": bounded(
        Block(children=_PAIR.children, nodes=_PAIR.nodes, outputs=("h",)), TWO_STEPS
    ),
    "a module that nothing calls": bitwise(
        Block(
            children=children(a=Linear(out=5), unused=Linear(out=3)),
            nodes=(call("h", "a", "x"),),
            outputs=("h",),
        )
    ),
    "two inputs": bounded(
        Block(
            children=children(a=Linear(out=4), b=Linear(out=4)),
            nodes=(call("h", "a", "x"), call("k", "b", "y"), tensor_op("z", "add", "h", "k")),
            outputs=("z",),
            inputs=("x", "y"),
        ),
        inputs=float_inputs(count=2),
    ),
}

_TWICE = Block(
    children=children(a=Linear(out=5), b=Linear(out=3)),
    nodes=(call("h", "a", "x"), call("k", "a", "h"), call("y", "b", "k")),
    outputs=("y",),
)
_PEEK = Block(
    children=children(a=Linear(out=5), b=Linear(out=3)),
    nodes=(
        call("s", "a", "x", grad=False),
        call("h", "a", "x"),
        tensor_op("m", "add", "s", "h"),
        call("y", "b", "m"),
    ),
    outputs=("y",),
)
_TIED = chain(a=Linear(out=5), b=Linear(out=5))
_TIE = (Tie(parameter="b.weight", source="a.weight"),)

REUSE = {
    "a module called twice": bounded(_TWICE),
    "a module called without gradients and with": bounded(_PEEK),
    "a module registered twice": bounded(
        chain(a=Linear(out=5), b=Alias(target="a"), c=Linear(out=2)), wrap=groups("a", ROOT)
    ),
    "weights tied in one group": bounded(_TIED, ties=_TIE, wrap=groups(ROOT)),
    "weights tied in a list group": bounded(_TIED, ties=_TIE, wrap=groups(("a", "b"), ROOT)),
    "weights tied without any group": bounded(_TIED, ties=_TIE, wrap=()),
    "two forwards, one backward": bounded(
        None, (FORWARD, AGAIN, BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP)
    ),
    "two forwards, the oldest first": bounded(
        None, (FORWARD, AGAIN, Backward(which="oldest"), Backward(which="oldest"), STEP), ddp=ONE_BY_ONE
    ),
    "two forwards, the newest first": bounded(
        None, (FORWARD, AGAIN, Backward(which="newest"), Backward(which="newest"), STEP), ddp=ONE_BY_ONE
    ),
}

_DEEP = chain(inner=chain(a=Linear(out=4), b=Linear(out=4)), c=Linear(out=3))

WRAPS = {
    "nothing wrapped": bitwise(wrap=()),
    "the root only": bitwise(wrap=groups(ROOT)),
    "every module and the root": bitwise(),
    "one module, and the root for the rest": bitwise(wrap=groups("b", ROOT)),
    "nested groups": bitwise(_DEEP, wrap=groups("inner.a", "inner", ROOT)),
    "a list group": bitwise(wrap=groups(("a", "b"), ROOT)),
    "groups without a root": bitwise(wrap=groups("a", "b")),
    "a module in no group": bitwise(wrap=groups("a")),
    "reshard after forward": bitwise(wrap=groups("a", "b", ROOT, reshard=True)),
    "no reshard after forward": bitwise(wrap=groups("a", "b", ROOT, reshard=False)),
    "reshard to groups of two ranks": bounded(
        chain(a=Linear(out=8), b=Linear(out=4)), mesh=4, wrap=groups("a", "b", ROOT, reshard=2)
    ),
    "reshard to groups of all ranks": bounded(mesh=4, wrap=groups("a", "b", ROOT, reshard=4)),
    "reshard to groups of one rank": bounded(mesh=4, wrap=groups("a", "b", ROOT, reshard=1)),
}

MESHES = {
    "one rank": bitwise(mesh=1),
    "two ranks": bitwise(mesh=2),
    "three ranks": bounded(mesh=3),
    "four ranks": bounded(mesh=4),
    "more ranks than rows": bounded(chain(a=Linear(out=2), b=Linear(out=1)), mesh=4),
    "even shards": bounded(chain(a=Linear(out=8), b=Linear(out=4)), mesh=4),
    "hsdp 2x2": bounded(mesh=Mesh(replicate=2, shard=2)),
    "hsdp 4x1": bounded(mesh=Mesh(replicate=4, shard=1)),
    "hsdp 1x4": bounded(mesh=Mesh(replicate=1, shard=4)),
    "hsdp 1x1": bitwise(mesh=Mesh(replicate=1, shard=1)),
}


def _toggled(*values: bool, target: str = "a") -> tuple[Op, ...]:
    """A training step before and after each change of ``requires_grad``."""
    ops: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO)
    for value in values:
        ops += (SetRequiresGrad(target=target, value=value), FORWARD, BACKWARD, STEP, ZERO)
    return ops


FREEZES = {
    "a parameter frozen before wrapping": bitwise(freezes=(Freeze(target="a.weight"),)),
    "a parameter frozen after wrapping": bitwise(freezes=(Freeze(target="a.weight", after_wrap=True),)),
    "a module frozen before wrapping": bitwise(freezes=(Freeze(target="a"),)),
    "a module frozen after wrapping": bitwise(freezes=(Freeze(target="b", after_wrap=True),)),
    "a frozen module in a trainable group": bitwise(freezes=(Freeze(target="a"),), wrap=groups(ROOT)),
    "frozen and unfrozen during training": bitwise(None, _toggled(False, True)),
    "unfrozen during training": bitwise(None, _toggled(True), freezes=(Freeze(target="a"),), ddp=UNFROZEN),
    "frozen between forward and backward": bitwise(
        None,
        (FORWARD, SetRequiresGrad(target="b", value=False), BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP),
    ),
}

_NO_SYNC = flag("requires_gradient_sync", False), flag("requires_gradient_sync", True)
_NO_ALL_REDUCE = flag("requires_all_reduce", False), flag("requires_all_reduce", True)
_NOT_LAST = flag("is_last_backward", False), flag("is_last_backward", True)
_NO_RESHARD = flag("reshard_after_backward", False), flag("reshard_after_backward", True)


def _accumulated(*flags: tuple[SetFlag, SetFlag]) -> tuple[Op, ...]:
    """Two microbatches, the first one with the flags as their first value says, then a plain step."""
    off, on = (tuple(ops) for ops in zip(*flags, strict=True)) if flags else ((), ())
    return (*off, FORWARD, BACKWARD, *on, AGAIN, BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP)


SCHEDULES = {
    "two steps": bitwise(),
    "no zero_grad between steps": bounded(None, (FORWARD, BACKWARD, STEP, AGAIN, BACKWARD, STEP)),
    "gradients zeroed in place": bounded(
        None, (FORWARD, BACKWARD, STEP, ZeroGrad(set_to_none=False), AGAIN, BACKWARD, STEP)
    ),
    "microbatches on two ranks": bounded(None, _accumulated()),
    "microbatches on four ranks": bounded(None, _accumulated(), mesh=4),
    "no sync": bounded(None, _accumulated(_NO_SYNC)),
    "no sync on hsdp": bounded(None, _accumulated(_NO_SYNC), mesh=Mesh(replicate=2, shard=2)),
    "no sync in one group": bounded(
        None,
        _accumulated((flag("requires_gradient_sync", False, "a"), flag("requires_gradient_sync", True, "a"))),
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
    "no all-reduce on hsdp": bounded(None, _accumulated(_NO_ALL_REDUCE), mesh=Mesh(replicate=2, shard=2)),
    "no all-reduce without replicas": bounded(None, _accumulated(_NO_ALL_REDUCE)),
    "sync switched between forward and backward": bounded(
        None,
        (FORWARD, _NO_SYNC[0], BACKWARD, _NO_SYNC[1], AGAIN, BACKWARD, STEP),
        ddp=SWITCHED,
    ),
    "a step on unsynchronised gradients": bounded(
        None, (_NO_SYNC[0], FORWARD, BACKWARD, STEP, ZERO, _NO_SYNC[1], AGAIN, BACKWARD, STEP), ddp=UNSYNCED
    ),
    "not the last backward": bounded(None, _accumulated(_NOT_LAST)),
    "no reshard after backward": bounded(None, _accumulated(_NO_RESHARD)),
    "not last and no reshard": bounded(None, _accumulated(_NO_RESHARD, _NOT_LAST)),
    "a forward without gradients in eval mode": bitwise(
        None,
        (
            *(FORWARD, BACKWARD, STEP),
            *(SetMode(train=False), Forward(batch=2, grad=False), SetMode(train=True)),
            *(ZERO, FORWARD, BACKWARD, STEP),
        ),
    ),
    "training in eval mode": bitwise(
        chain(a=Linear(out=4), n=BatchNorm(), d=Dropout()),
        (SetMode(train=False), *TWO_STEPS),
    ),
    "a forward between backward and step": bitwise(
        None, (FORWARD, BACKWARD, Forward(batch=2, grad=False), STEP, ZERO, FORWARD, BACKWARD, STEP)
    ),
    "a forward of a part, after the root ran": bitwise(
        None,
        (FORWARD, BACKWARD, STEP, ZERO, Forward(target="b"), BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP),
        ddp=PAST_DDP,
    ),
}

OPTIONS = {
    "momentum": bitwise(optimizer=Optimizer(momentum=0.5)),
    "sgd with weight decay": bitwise(optimizer=Optimizer(weight_decay=0.125)),
    "adam": bitwise(optimizer=Optimizer(kind="adam", lr=0.01)),
    "adam on four ranks": bounded(mesh=4, optimizer=Optimizer(kind="adam", lr=0.01)),
    "adamw on three ranks": bounded(mesh=3, optimizer=Optimizer(kind="adamw", lr=0.01, weight_decay=0.1)),
    "double precision": bitwise(dtype="float64"),
    "double precision on four ranks": bounded(mesh=4, dtype="float64"),
    "dyadic values": bitwise(values="dyadic"),
    "exact values on four ranks": bitwise(
        chain(a=Linear(out=4), r=Activation(), b=Linear(out=2)),
        (FORWARD, BACKWARD, STEP),
        mesh=4,
        values="dyadic",
        inputs=float_inputs(4),
    ),
    "loss sum": bitwise(loss="sum"),
    "loss mean square": bitwise(loss="mean_square"),
    "a composable checkpoint": bitwise(checkpoints=(Checkpoint(module="a"),)),
    "a checkpoint wrapper": bitwise(checkpoints=(Checkpoint(module="b", implementation="wrapper"),)),
    "a checkpoint of the root": bitwise(checkpoints=(Checkpoint(module=ROOT),)),
    "a checkpointed dropout": bitwise(
        chain(a=Linear(out=4), d=Dropout(), b=Linear(out=3)), checkpoints=(Checkpoint(module="d"),)
    ),
    "a checkpointed batch norm": bitwise(
        chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3)), checkpoints=(Checkpoint(module="n"),)
    ),
    "fully_shard alone": bitwise(engines=("fully_shard",)),
    "ddp alone": bitwise(engines=("ddp",)),
}

STOCK: dict[str, Stock] = {
    f"{area}: {name}": stock
    for area, table in {
        "leaf": LEAVES,
        "graph": GRAPHS,
        "reuse": REUSE,
        "wrap": WRAPS,
        "mesh": MESHES,
        "freeze": FREEZES,
        "schedule": SCHEDULES,
        "option": OPTIONS,
    }.items()
    for name, stock in table.items()
}
