"""Cases that tests of the reproducer share: the smallest one, and one that has nearly
everything.
"""

from __future__ import annotations

from cases import graph

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
from fuzzshard.case.graph import Alias, Block, Call, Child
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.convolutions import Conv1d
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm, LayerNorm, RMSNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter


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
    schedule=(ops.Forward(), ops.Backward()),
    wrap=(WrapGroup(modules=("",)),),
    loss="mean_square",
)

_INNER = graph(
    "a = attn(x)",
    "b = mlp(a)",
    "c = drop(b)",
    "d = add(c, x)",
    outputs="d b",
    returns="dict",
    attn=Attention(heads=2),
    mlp=MLP(hidden=6),
    drop=Dropout(p=0.25),
)

EVERYTHING = Case(
    seed=77,
    model=graph(
        "e = embed(ids)",
        "c = conv(x)",
        "s = add(e, c)",
        "b = bn(s)",
        "p = layer(b)",
        "n = norm(p.0)",
        "r = rms(p.1)",
        "m = mul(n, r)",
        "q = scale(m)",
        "t = matrix(q)",
        "f = again(t) without grad",
        "k = concat(t, f)",
        "h = head(k)",
        "g = act(h)",
        "z = detach(g)",
        "y = tanh(g)",
        outputs="y z h",
        inputs="ids x",
        returns="tuple",
        embed=Embedding(vocab=9, dim=4),
        conv=Conv1d(out=4),
        bn=BatchNorm(),
        layer=_INNER,
        norm=LayerNorm(bias=False),
        rms=RMSNorm(),
        scale=RawParameter(),
        matrix=RawParameter(matrix=True),
        act=Activation(fn="gelu"),
        again=Alias(target="conv"),
        head=Linear(out=4, bias=False),
        unused=Linear(out=3),
    ),
    inputs=Inputs(
        batch=2,
        seq=3,
        tensors=(TensorSpec(kind="ids", size=9), TensorSpec(size=4, requires_grad=True)),
    ),
    mesh=Mesh(shard=2, replicate=2),
    schedule=(
        ops.Forward(batch=0, outputs=(0, 2)),
        ops.Backward(),
        ops.SetFlag(flag="requires_gradient_sync", value=False),
        ops.Forward(batch=1),
        ops.Backward(),
        ops.SetFlag(flag="requires_gradient_sync", value=True),
        ops.Forward(batch=2),
        ops.Forward(batch=0),
        ops.Backward(which="oldest"),
        ops.Backward(),
        ops.Forward(batch=3, grad=False),
        ops.Reshard(),
        ops.Step(),
        ops.ZeroGrad(set_to_none=False),
        ops.SetMode(train=False),
        ops.SetRequiresGrad(target="layer.mlp", value=False),
        ops.Forward(batch=4, target="layer"),
        ops.Backward(),
        ops.SetMode(train=True),
        ops.Step(),
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
