"""How blocks are called and what they return; paths; values changed in place."""

from __future__ import annotations

from cases import BACKWARD, FORWARD, STEP, TWO_STEPS, ZERO, call, chain, float_inputs, graph

from fuzzshard.case.case import Freeze, Inputs, TensorSpec
from fuzzshard.case.graph import Call, Passing, Returns, TensorOp
from fuzzshard.parts.leaves.convolutions import Conv2d
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.ops import SetPath
from stock_cases.stock import Stock, bitwise, bounded


def _nested(passing: Passing, returns: Returns) -> Stock:
    """A block of two inputs and two results, called by the root."""
    pair = graph(
        "h = a(x)",
        "k = b(y)",
        outputs="h k",
        inputs="x y",
        returns=returns,
        passing=passing,
        a=Linear(out=4),
        b=Linear(out=4),
    )
    model = graph(
        "p = pair(x, y)", "z = add(p.0, p.1)", "o = c(z)", inputs="x y", pair=pair, c=Linear(out=2)
    )
    return bitwise(model, inputs=float_inputs(count=2))


_ATTENDING = graph(
    *(call(f"h{name}", name, "x") for name in "qkv"),
    TensorOp(name="mixed", op="attend", args=("hq", "hk", "hv"), head_dim=2),
    "y = o(mixed)",
    q=Linear(out=4),
    k=Linear(out=4),
    v=Linear(out=4),
    o=Linear(out=5),
)
_IN_PLACE = graph(
    "h = a(x)",
    "k = b(h)",
    "m = a(k) without grad",
    "y = iadd(k, m)",
    a=Linear(out=5),
    b=Linear(out=5),
)
_SWITCHED = graph(
    "h0 = a(x)",
    Call(name="h1", module="b", args=("h0",), alternatives=("d",)),
    outputs="h1",
    a=Linear(out=4),
    b=Linear(out=3),
    c=MLP(hidden=6),
    d=Linear(out=3),
)
_PATCHES = graph(
    "h = conv(image)",
    inputs="image",
    method="forward_features",
    conv=Conv2d(channels=3, kernel=2, out=6),
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
}
