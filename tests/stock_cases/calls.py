"""How blocks are called and what they return; paths; values changed in place."""

from __future__ import annotations

from cases import (
    BACKWARD,
    FORWARD,
    STEP,
    TWO_STEPS,
    ZERO,
    call,
    chain,
    children,
    float_inputs,
    tensor_op,
)

from fuzzshard.case.case import Checkpoint, Freeze, Inputs, TensorSpec
from fuzzshard.case.graph import Block, Call, Passing, Returns, TensorOp
from fuzzshard.parts.leaves.convolutions import Conv2d
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.ops import SetPath
from stock_cases.stock import Stock, bitwise, bounded


def _nested(passing: Passing, returns: Returns) -> Stock:
    """A block of two inputs and two results, called by the root."""
    pair = Block(
        children=children(a=Linear(out=4), b=Linear(out=4)),
        nodes=(call("h", "a", "x"), call("k", "b", "y")),
        outputs=("h", "k"),
        inputs=("x", "y"),
        returns=returns,
        passing=passing,
    )
    model = Block(
        children=children(pair=pair, c=Linear(out=2)),
        nodes=(
            call("p", "pair", "x", "y"),
            tensor_op("z", "add", "p.0", "p.1"),
            call("o", "c", "z"),
        ),
        outputs=("o",),
        inputs=("x", "y"),
    )
    return bitwise(model, inputs=float_inputs(count=2))


_ATTENDING = Block(
    children=children(q=Linear(out=4), k=Linear(out=4), v=Linear(out=4), o=Linear(out=5)),
    nodes=(
        *(call(f"h{name}", name, "x") for name in "qkv"),
        TensorOp(name="mixed", op="attend", args=("hq", "hk", "hv"), head_dim=2),
        call("y", "o", "mixed"),
    ),
    outputs=("y",),
)
_IN_PLACE = Block(
    children=children(a=Linear(out=5), b=Linear(out=5)),
    nodes=(
        call("h", "a", "x"),
        call("k", "b", "h"),
        call("m", "a", "k", grad=False),
        tensor_op("y", "iadd", "k", "m"),
    ),
    outputs=("y",),
)
_SWITCHED = Block(
    children=children(a=Linear(out=4), b=Linear(out=3), c=MLP(hidden=6), d=Linear(out=3)),
    nodes=(
        call("h0", "a", "x"),
        Call(name="h1", module="b", args=("h0",), alternatives=("d",)),
    ),
    outputs=("h1",),
)
_PATCHES = Block(
    children=children(conv=Conv2d(channels=3, kernel=2, out=6)),
    nodes=(call("h", "conv", "image"),),
    outputs=("h",),
    inputs=("image",),
    method="forward_features",
)

CALLS = {
    "keywords, and a list": _nested("keyword", "list"),
    "a tuple, and a named tuple": _nested("tuple", "namedtuple"),
    "a dict, and a dataclass": _nested("dict", "dataclass"),
    "a dataclass, and a tuple": _nested("dataclass", "tuple"),
    "patches by a method that is not forward": bitwise(
        chain(vit=_PATCHES, projector=Linear(out=4)),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=3 * 4 * 4),)),
    ),
    "attention of three linears": bounded(_ATTENDING, inputs=float_inputs(4, seq=3)),
    "an addition in place": bounded(_IN_PLACE, freezes=(Freeze(target="b"),), ddp=""),
    "one path and then the other": bounded(
        _SWITCHED, (*TWO_STEPS, ZERO, SetPath(path=1), FORWARD, BACKWARD, STEP)
    ),
    "a checkpoint where the module is called": bitwise(
        checkpoints=(Checkpoint(module="a", implementation="utils"),)
    ),
}
