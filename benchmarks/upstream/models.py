"""The models that upstream's tests share, with its names (torch/testing/_internal/common_fsdp.py
and distributed/_tensor/common_dtensor.py). What a container numbers is numbered in its name:
``layer_0``.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuzzshard.case.case import Inputs, TensorSpec, Tie
from fuzzshard.case.graph import Block, Call, Child, Module, TensorOp
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm

DIM = 16
HEADS = 4


def block(
    modules: Mapping[str, Module],
    *nodes: Call | TensorOp,
    inputs: tuple[str, ...] = ("x",),
    output: str = "",
) -> Block:
    """A module of these children whose forward is ``nodes``; it returns the last, or
    ``output``.
    """
    return Block(
        children=tuple(Child(name=name, module=module) for name, module in modules.items()),
        nodes=nodes,
        outputs=(output or nodes[-1].name,),
        inputs=inputs,
    )


def call(name: str, module: str, *args: str, grad: bool = True) -> Call:
    """``name = self.module(*args)``, or that under ``torch.no_grad()``."""
    return Call(name=name, module=module, args=args, grad=grad)


def add(name: str, *args: str) -> TensorOp:
    """The sum of values."""
    return TensorOp(name=name, op="add", args=args)


def relu(name: str, value: str) -> TensorOp:
    """``F.relu``."""
    return TensorOp(name=name, op="relu", args=(value,))


def sequential(modules: Mapping[str, Module]) -> Block:
    """``nn.Sequential``."""
    values = ["x", *(f"h{i}" for i in range(len(modules)))]
    calls = (call(values[i + 1], name, values[i]) for i, name in enumerate(modules))
    return block(modules, *calls)


def mlp(dim: int, multiplier: int = 4) -> Block:
    """``MLP``: two linears, each followed by a ReLU."""
    return block(
        {"in_proj": Linear(out=multiplier * dim), "out_proj": Linear(out=dim)},
        call("up", "in_proj", "x"),
        relu("hidden", "up"),
        call("down", "out_proj", "hidden"),
        relu("z", "down"),
    )


def mlps(dim: int, *multipliers: int) -> dict[str, Module]:
    """``mlp_0``, ``mlp_1``, ... for ``nn.Sequential``."""
    return {f"mlp_{i}": mlp(dim, multiplier) for i, multiplier in enumerate(multipliers)}


def mlp_stack(dim: int) -> Block:
    """``MLPStack``: the outer two MLPs have widths that tensor-parallel ranks divide unevenly."""
    return sequential(mlps(dim, 3, 4, 3))


def linears_and_relus(count: int, dim: int) -> Block:
    """``count`` pairs of a linear and a ReLU in one ``nn.Sequential``."""
    modules: dict[str, Module] = {}
    for i in range(count):
        modules |= {f"linear_{i}": Linear(out=dim), f"relu_{i}": Activation(fn="relu")}
    return sequential(modules)


def inner_and_outer() -> Block:
    """``outer(inner(x) + inner(x))``: a unit that one forward traverses twice."""
    return block(
        {"inner": Linear(out=4), "outer": Linear(out=5)},
        call("first", "inner", "x"),
        call("second", "inner", "x"),
        add("both", "first", "second"),
        call("out", "outer", "both"),
    )


def transformer(layers: int = 2, vocab: int = 8, max_seq: int = 16, dropout: float = 0.0) -> Block:
    """``Transformer``; its output weight is tied by :data:`TIED`. Its second input is the
    positions.
    """
    names = layer_names(layers)
    modules: dict[str, Module] = {
        "tok_embeddings": Embedding(vocab=vocab, dim=DIM),
        "pos_embeddings": Embedding(vocab=max_seq, dim=DIM),
        "dropout": Dropout(p=dropout),
        **{name: _transformer_block(dropout) for name in names},
        "norm": LayerNorm(),
        "output": Linear(out=vocab, bias=False),
    }
    values = ["h", *(f"h{i}" for i in range(layers))]
    return block(
        modules,
        call("t", "tok_embeddings", "tokens"),
        call("p", "pos_embeddings", "positions"),
        add("both", "t", "p"),
        call("h", "dropout", "both"),
        *(call(values[i + 1], name, values[i]) for i, name in enumerate(names)),
        call("normed", "norm", values[-1]),
        call("logits", "output", "normed"),
        inputs=("tokens", "positions"),
    )


TIED = (Tie(parameter="output.weight", source="tok_embeddings.weight"),)


def layer_names(layers: int = 2) -> tuple[str, ...]:
    """The blocks of a transformer, which upstream keeps in the list ``layers``."""
    return tuple(f"layer_{i}" for i in range(layers))


def token_inputs(batch: int, seq: int, vocab: int = 8, max_seq: int = 16) -> Inputs:
    """Token ids, and the ids that stand for positions."""
    ids = tuple(TensorSpec(kind="ids", size=size) for size in (vocab, max_seq))
    return Inputs(batch=batch, seq=seq, tensors=ids)


def _transformer_block(dropout: float) -> Block:
    projections: dict[str, Module] = {
        name: Linear(out=DIM, bias=False) for name in ("wq", "wk", "wv", "wo")
    }
    attention = block(
        {"resid_dropout": Dropout(p=dropout), **projections},
        call("q", "wq", "x"),
        call("k", "wk", "x"),
        call("v", "wv", "x"),
        TensorOp(name="attended", op="attend", args=("q", "k", "v"), head_dim=DIM // HEADS),
        call("projected", "wo", "attended"),
        call("out", "resid_dropout", "projected"),
    )
    feed_forward = sequential(
        {
            "w1": Linear(out=4 * DIM),
            "gelu": Activation(fn="gelu"),
            "w2": Linear(out=DIM),
            "resid_dropout": Dropout(p=dropout),
        }
    )
    return block(
        {
            "attention_norm": LayerNorm(),
            "attention": attention,
            "ffn_norm": LayerNorm(),
            "feed_forward": feed_forward,
        },
        call("n", "attention_norm", "x"),
        call("a", "attention", "n"),
        add("h", "x", "a"),
        call("m", "ffn_norm", "h"),
        call("f", "feed_forward", "m"),
        add("out", "h", "f"),
    )
