"""Leaves, graphs and reuse."""

from __future__ import annotations

from typing import Any

from cases import (
    AGAIN,
    FORWARD,
    ROOT,
    STEP,
    chain,
    float_inputs,
    graph,
    groups,
    tensor_op,
)

from fuzzshard.case.case import Tie
from fuzzshard.case.graph import Alias, Block
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.constant import Constant
from fuzzshard.parts.leaves.convolutions import Conv1d
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.lstm import LSTM
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from fuzzshard.parts.leaves.operators import EXPRESSIONS, Operators
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.leaves.running_sum import RunningSum
from fuzzshard.parts.leaves.weight_norm import WeightNorm
from fuzzshard.parts.ops import Backward
from stock_cases.stock import Stock, bitwise, bounded

ONE_BY_ONE = "not applicable: several forwards have their backward one by one"


def leaf(module: Leaf, *, seq: int = 0, **options: Any) -> Stock:
    """The leaf between two linear layers, so that its inputs have gradients and its gradients a
    source.
    """
    model = chain(before=Linear(out=4), leaf=module, after=Linear(out=3))
    return bitwise(model, inputs=float_inputs(seq=seq), **options)


def joined(op: str, *args: str) -> Stock:
    """``op`` over the results of two linear layers that read one input."""
    model = graph(
        "h = a(x)",
        "k = b(x)",
        tensor_op("y", op, *args),
        "z = c(y)",
        a=Linear(out=4),
        b=Linear(out=4),
        c=Linear(out=2),
    )
    return bounded(model)


LEAVES = {
    "linear": leaf(Linear(out=6)),
    "linear without bias": leaf(Linear(out=6, bias=False)),
    "linear of one feature": leaf(Linear(out=1)),
    **{
        f"operators, {name}": leaf(Operators(functions=((name, -1),)), seq=3)
        for name in EXPRESSIONS
    },
    "operators along two dims": leaf(Operators(functions=(("softmax", -2),), both=True), seq=3),
    "layer norm": leaf(LayerNorm()),
    "group norm": leaf(GroupNorm()),
    "group norm of two groups": leaf(GroupNorm(groups=2)),
    "layer norm without bias": leaf(LayerNorm(bias=False)),
    "rms norm": leaf(RMSNorm()),
    "batch norm": leaf(BatchNorm()),
    "batch norm of a sequence": leaf(BatchNorm(), seq=3),
    "conv1d": leaf(Conv1d(out=6), seq=3),
    "conv1d without bias": leaf(Conv1d(out=6, bias=False), seq=3),
    "conv1d with one input channel": bounded(
        chain(before=Linear(out=1), leaf=Conv1d(out=6)), inputs=float_inputs(seq=3)
    ),
    "raw vector": leaf(RawParameter()),
    "a function of the user's own": leaf(RawParameter(custom=True)),
    "raw matrix": leaf(RawParameter(matrix=True)),
    "mlp": leaf(MLP(hidden=6)),
    "mlp without biases": leaf(MLP(hidden=6, bias=False)),
    "attention": leaf(Attention(heads=2), seq=3),
    "lstm": leaf(LSTM(out=6), seq=3),
    "lstm without biases": leaf(LSTM(out=6, bias=False), seq=3),
    "weight norm": bounded(
        chain(leaf=WeightNorm(out=6), after=WeightNorm(out=3, bias=False)), wrap=groups(ROOT)
    ),
    "buffer in no state dict, on the meta device": leaf(Constant(), init="meta"),
    "running sum": leaf(RunningSum()),
    "running sum of a sequence, in no state dict": leaf(RunningSum(persistent=False), seq=3),
    "running sum on the meta device": leaf(RunningSum(), init="meta"),
    "dropout": leaf(Dropout()),
    "relu module": leaf(Activation()),
    "gelu module": leaf(Activation(fn="gelu")),
    "tanh module": leaf(Activation(fn="tanh")),
}

_PAIR = graph(
    "h = a(x)", "k = b(h)", outputs="h k", returns="tuple", a=Linear(out=4), b=Linear(out=3)
)


def _calls_pair(*used: str, returns: str = "tuple") -> Block:
    """A nested block with two results, of which the root reads those in ``used``."""
    pair = Block(
        children=_PAIR.children, nodes=_PAIR.nodes, outputs=_PAIR.outputs, returns=returns
    )
    return graph(
        "p = pair(x)", tensor_op("y", "concat", *used), "z = c(y)", pair=pair, c=Linear(out=2)
    )


GRAPHS = {
    "an addition": joined("add", "h", "k"),
    "an addition of three": joined("add", "h", "k", "h"),
    "a product": joined("mul", "h", "k"),
    "a concatenation": joined("concat", "h", "k"),
    "a detached value": joined("detach", "h"),
    "a relu between modules": joined("relu", "h"),
    "a tanh between modules": joined("tanh", "h"),
    "a residual around a module": bounded(graph("h = a(x)", "y = add(x, h)", a=Linear(out=5))),
    "a nested block with a tuple": bounded(_calls_pair("p.0", "p.1")),
    "a nested block with a dict": bounded(_calls_pair("p.0", "p.1", returns="dict")),
    "a nested block with an unread result": bounded(_calls_pair("p.1")),
}

_TWICE = graph("h = a(x)", "k = a(h)", "y = b(k)", a=Linear(out=5), b=Linear(out=3))
_PEEK = graph(
    "s = a(x) without grad",
    "h = a(x)",
    "m = add(s, h)",
    "y = b(m)",
    a=Linear(out=5),
    b=Linear(out=3),
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
    "two forwards, the oldest first": bounded(
        None,
        (FORWARD, AGAIN, Backward(which="oldest"), Backward(which="oldest"), STEP),
        ddp=ONE_BY_ONE,
    ),
    "two forwards, the newest first": bounded(
        None,
        (FORWARD, AGAIN, Backward(which="newest"), Backward(which="newest"), STEP),
        ddp=ONE_BY_ONE,
    ),
}
