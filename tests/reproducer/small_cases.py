"""Cases that tests of the reproducer share: the smallest one, and one that has nearly
everything.
"""

from __future__ import annotations

from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Alias, Block, Call, Child, TensorOp
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.convolutions import Conv1d
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm, LayerNorm, RMSNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import (
    Backward,
    Forward,
    Reshard,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)


def chain(*names: str, outputs: tuple[str, ...] = ()) -> Block:
    """Linear layers one after another."""
    values = ("x", *(f"h{i}" for i in range(len(names))))
    return Block(
        children=tuple(Child(name=name, module=Linear(out=4)) for name in names),
        nodes=tuple(
            Call(name=values[i + 1], module=name, args=(values[i],))
            for i, name in enumerate(names)
        ),
        outputs=outputs or (values[-1],),
        returns="tuple" if len(outputs) > 1 else "tensor",
    )


SMALL = Case(
    seed=0,
    model=chain("linear0"),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward()),
    wrap=(WrapGroup(modules=("",)),),
    loss="mean_square",
)

_INNER = Block(
    children=(
        Child(name="attn", module=Attention(heads=2)),
        Child(name="mlp", module=MLP(hidden=6)),
        Child(name="drop", module=Dropout(p=0.25)),
    ),
    nodes=(
        Call(name="a", module="attn", args=("x",)),
        Call(name="b", module="mlp", args=("a",)),
        Call(name="c", module="drop", args=("b",)),
        TensorOp(name="d", op="add", args=("c", "x")),
    ),
    outputs=("d", "b"),
    returns="dict",
)

EVERYTHING = Case(
    seed=77,
    model=Block(
        children=(
            Child(name="embed", module=Embedding(vocab=9, dim=4)),
            Child(name="conv", module=Conv1d(out=4)),
            Child(name="bn", module=BatchNorm()),
            Child(name="layer", module=_INNER),
            Child(name="norm", module=LayerNorm(bias=False)),
            Child(name="rms", module=RMSNorm()),
            Child(name="scale", module=RawParameter()),
            Child(name="matrix", module=RawParameter(matrix=True)),
            Child(name="act", module=Activation(fn="gelu")),
            Child(name="again", module=Alias(target="conv")),
            Child(name="head", module=Linear(out=4, bias=False)),
            Child(name="unused", module=Linear(out=3)),
        ),
        nodes=(
            Call(name="e", module="embed", args=("ids",)),
            Call(name="c", module="conv", args=("x",)),
            TensorOp(name="s", op="add", args=("e", "c")),
            Call(name="b", module="bn", args=("s",)),
            Call(name="p", module="layer", args=("b",)),
            Call(name="n", module="norm", args=("p.0",)),
            Call(name="r", module="rms", args=("p.1",)),
            TensorOp(name="m", op="mul", args=("n", "r")),
            Call(name="q", module="scale", args=("m",)),
            Call(name="t", module="matrix", args=("q",)),
            Call(name="f", module="again", args=("t",), grad=False),
            TensorOp(name="k", op="concat", args=("t", "f")),
            Call(name="h", module="head", args=("k",)),
            Call(name="g", module="act", args=("h",)),
            TensorOp(name="z", op="detach", args=("g",)),
            TensorOp(name="y", op="tanh", args=("g",)),
        ),
        inputs=("ids", "x"),
        outputs=("y", "z", "h"),
        returns="tuple",
    ),
    inputs=Inputs(
        batch=2,
        seq=3,
        tensors=(TensorSpec(kind="ids", size=9), TensorSpec(size=4, requires_grad=True)),
    ),
    mesh=Mesh(shard=2, replicate=2),
    schedule=(
        Forward(batch=0, outputs=(0, 2)),
        Backward(),
        SetFlag(flag="requires_gradient_sync", value=False),
        Forward(batch=1),
        Backward(),
        SetFlag(flag="requires_gradient_sync", value=True),
        Forward(batch=2),
        Forward(batch=0),
        Backward(which="oldest"),
        Backward(),
        Forward(batch=3, grad=False),
        Reshard(),
        Step(),
        ZeroGrad(set_to_none=False),
        SetMode(train=False),
        SetRequiresGrad(target="layer.mlp", value=False),
        Forward(batch=4, target="layer"),
        Backward(),
        SetMode(train=True),
        Step(),
    ),
    wrap=(
        WrapGroup(modules=("layer.attn", "layer.mlp"), reshard_after_forward=False),
        WrapGroup(modules=("layer",), reshard_after_forward=True),
        WrapGroup(modules=("",)),
    ),
    ties=(Tie(parameter="rms.weight", source="norm.weight"),),
    checkpoints=(
        Checkpoint(module="layer.mlp"),
        Checkpoint(module="head", implementation="wrapper"),
    ),
    freezes=(Freeze(target="embed"), Freeze(target="matrix", after_wrap=True)),
    optimizer=Optimizer(kind="adamw", lr=0.01, weight_decay=0.1),
    dtype="float64",
    loss="dot",
)
