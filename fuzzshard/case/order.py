"""The size of a Case: an explicit total order, so that every failure has one canonical minimum."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode
from fuzzshard.case.graph import (
    MLP,
    Activation,
    Alias,
    Attention,
    BatchNorm,
    Block,
    Call,
    Conv1d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    Part,
    RawParameter,
    RMSNorm,
    walk,
)

_RANKS: dict[type[Part], int] = {
    Activation: 0,
    RawParameter: 2,
    Linear: 6,
    RMSNorm: 8,
    LayerNorm: 10,
    Dropout: 12,
    BatchNorm: 13,
    Embedding: 14,
    Conv1d: 15,
    MLP: 17,
    Attention: 19,
}
"""How much a reader has to know to read a leaf, simplest first."""


class Size(NamedTuple):
    """What :func:`size_order` compares, most important first."""

    ranks: int
    hsdp: bool
    engines: int
    ops: int
    options: int
    groups: int
    wrapped: int
    leaves: int
    aliases: int
    blocks: int
    nodes: int
    values: int
    kinds: int
    width: int
    batch: int
    seq: int
    seed: int
    named: int
    depth: int
    length: int
    encoded: bytes


def size_order(case: Case) -> Size:
    """The key by which one case is smaller than another; no two different cases are equal.

    Mesh size 1 is smaller than 2: a failure that shows on one rank is no failure of communication.
    What needs a sentence to explain (a rank, an op, an option off its default) weighs more than what
    only makes the model longer.
    """
    modules = [module for _, module in walk(case.model)]
    blocks = [m for m in modules if isinstance(m, Block)]
    encoded = encode(case)
    return Size(
        ranks=case.mesh.size,
        hsdp=case.mesh.replicate is not None,
        engines=len(case.engines),
        ops=len(case.schedule),
        options=_count_options(case),
        groups=len(case.wrap),
        wrapped=sum(len(g.modules) for g in case.wrap),
        leaves=leaf_count(case),
        aliases=sum(isinstance(m, Alias) for m in modules),
        blocks=len(blocks),
        nodes=sum(len(b.nodes) for b in blocks),
        values=sum(len(b.inputs) + len(b.outputs) + sum(len(n.args) for n in b.nodes) for b in blocks),
        kinds=sum(kind_rank(m) for m in modules) + sum(_form_rank(b) for b in blocks),
        width=sum(t.size for t in case.inputs.tensors) + sum(map(_width, modules)),
        batch=case.inputs.batch,
        seq=case.inputs.seq,
        seed=abs(case.seed),
        named=sum(map(_named, blocks)),
        depth=sum(len(p.split(".")) for p in _targets(case) if p),
        length=len(encoded),
        encoded=encoded,
    )


def leaf_count(case: Case) -> int:
    """The number of modules without children; an MLP or an attention counts as its two Linears."""
    modules = (module for _, module in walk(case.model))
    return sum(
        2 if isinstance(m, MLP | Attention) else not (isinstance(m, Block) and m.children) for m in modules
    )


def kind_rank(module: Module) -> int:
    """The place of a leaf in the order of simplicity; a block or an alias has none."""
    match module:
        case RawParameter(matrix=True):
            return 3
        case Linear(bias=True) | LayerNorm(bias=True) | Conv1d(bias=True) | MLP(bias=True):
            return _RANKS[type(module)] + 1
        case Block() | Alias():
            return 0
    return _RANKS[type(module)]


def canonical_children(block: Block) -> dict[str, str]:
    """For each child the name it should have: its kind and a number."""
    counts: dict[str, int] = {}
    names = {}
    for child in block.children:
        kind = str(type(child.module).__struct_config__.tag)
        counts[kind] = counts.get(kind, -1) + 1
        names[child.name] = f"{kind}{counts[kind]}"
    return names


def canonical_values(block: Block) -> dict[str, str]:
    """For each input and node the name it should have."""
    several = len(block.inputs) > 1
    names = {name: f"x{i}" if several else "x" for i, name in enumerate(block.inputs)}
    return names | {node.name: f"h{i}" for i, node in enumerate(block.nodes)}


def off_default(part: Part) -> Iterator[str]:
    """The fields of ``part`` that have a default and differ from it."""
    for name, default in _defaults(type(part)).items():
        if getattr(part, name) != default:
            yield name


def default_of(part: Part, name: str) -> object:
    """The default of one field."""
    return _defaults(type(part))[name]


@functools.cache
def _defaults(part: type[Part]) -> dict[str, object]:
    return {f.name: f.default for f in msgspec.structs.fields(part) if not f.required}


def _count_options(case: Case) -> int:
    parts = (
        case.optimizer,
        *case.inputs.tensors,
        *case.schedule,
        *case.wrap,
        *case.checkpoints,
        *case.freezes,
    )
    fields = sum(1 for part in parts for _ in off_default(part))
    scalars = sum(name in ("dtype", "values", "loss") for name in off_default(case))
    extras = len(case.ties) + len(case.checkpoints) + len(case.freezes)
    return fields + scalars + extras + (case.inputs.seq > 0)


def _named(block: Block) -> int:
    names = [*canonical_children(block).items(), *canonical_values(block).items()]
    return sum(name != canonical for name, canonical in names)


def _form_rank(block: Block) -> int:
    returns = ("tensor", "tuple", "dict").index(block.returns)
    ranks = {"relu": 0, "add": 0, "tanh": 1, "mul": 1, "concat": 2, "detach": 2}
    return returns + sum(not n.grad if isinstance(n, Call) else ranks[n.op] for n in block.nodes)


def _width(module: Module) -> int:
    match module:
        case Linear(out=out) | Conv1d(out=out) | MLP(hidden=out):
            return out
        case Embedding(vocab=vocab, dim=dim):
            return vocab + dim
        case Attention(heads=heads):
            return heads - 1
    return 0


def _targets(case: Case) -> Iterator[str]:
    for group in case.wrap:
        yield from group.modules
    yield from (f.target for f in case.freezes)
    yield from (c.module for c in case.checkpoints)
    yield from (getattr(op, "target", "") for op in case.schedule)
