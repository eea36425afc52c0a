"""The size of a Case: an explicit total order, so that every failure has one canonical minimum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, get_args

from msgspec.structs import astuple

from fuzzshard.analysis.oddities import (
    count_uneven,
    count_unused,
    disorder,
    flag_distance,
    plan_depth,
)
from fuzzshard.case.case import Case, CheckpointImplementation, Mesh
from fuzzshard.case.codec import encode
from fuzzshard.case.dims import get_dims
from fuzzshard.case.graph import Alias, Block, Call, Passing, Returns, walk
from fuzzshard.parts.engines import OPTIONS
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.part import defaults, off_default


class Size(NamedTuple):
    """What :func:`size_order` compares, most important first."""

    mesh: tuple[int, int]
    engines: int
    private: int
    ops: int
    options: int
    groups: int
    wrapped: int
    plan: int
    leaves: int
    aliases: int
    blocks: int
    unused: int
    nodes: int
    values: int
    kinds: int
    uneven: int
    width: int
    batch: int
    seq: int
    seed: int
    flags: int
    disorder: int
    named: int
    depth: int
    length: int
    encoded: bytes


def size_order(case: Case) -> Size:
    """Return the key by which one case is smaller than another; no two different cases are equal.

    What needs a sentence to explain (a rank, an op, an option off its default) weighs more than
    what only makes the model longer, and a name that is private in torch weighs more than an op.
    Of two equally long models the one that a person would have written is smaller: every module
    called, every value read, the root wrapped, widths that the shards divide evenly. An MLP or an
    attention counts as two Linears called in sequence.
    """
    modules = [module for _, module in walk(case.model)]
    blocks = [m for m in modules if isinstance(m, Block)]
    leaves = [m for m in modules if isinstance(m, Leaf)]
    pairs = sum(bool(leaf.apart(1)) for leaf in leaves)
    encoded = encode(case)
    return Size(
        mesh=mesh_rank(case.mesh),
        engines=len(case.engines),
        private=sum(
            get_args(CheckpointImplementation).index(c.implementation) for c in case.checkpoints
        ),
        ops=len(case.schedule),
        options=_count_options(case),
        groups=len(case.wrap),
        wrapped=sum(len(g.modules) for g in case.wrap),
        plan=plan_depth(case),
        leaves=leaf_count(case),
        aliases=sum(isinstance(m, Alias) for m in modules),
        blocks=len(blocks),
        unused=count_unused(case),
        nodes=pairs + sum(len(b.nodes) for b in blocks),
        values=pairs
        + sum(len(b.inputs) + len(b.outputs) + sum(len(n.args) for n in b.nodes) for b in blocks),
        kinds=sum(map(leaf_rank, leaves)) + sum(_form_rank(b) for b in blocks),
        uneven=count_uneven(case),
        width=sum(get_dims(case).values()) + sum(map(_excess, leaves)),
        # fewer rows come first, but none after all that one writes by hand: empty tensors take
        # paths of their own
        batch=case.inputs.batch + sum(item.rows or 8 for item in case.inputs.rank_batches),
        seq=case.inputs.seq,
        seed=abs(case.seed),
        flags=flag_distance(case),
        disorder=disorder(case),
        named=sum(map(_named, blocks)),
        depth=sum(len(p.split(".")) for p in _targets(case) if p),
        length=len(encoded),
        encoded=encoded,
    )


SCALARS = (
    "dtype",
    "values",
    "loss",
    "init",
    "finalize",
    "compile",
    "observe",
    "ignored_by",
    *OPTIONS,
)
"""The fields of a case that are one option each."""


def mesh_rank(mesh: Mesh) -> tuple[int, int]:
    """Return the place of a mesh in the order: fewest axes first; of 2 ranks, then of 1, then of
    3, 4, ...

    A mesh of size 1 takes paths of its own in torch, which skip collectives, so a failure on two
    ranks says more.
    """
    axes = sum(size is not None for size in (mesh.replicate, mesh.tensor, mesh.pipeline))
    return axes, {2: 0, 1: 1}.get(mesh.size, mesh.size)


def leaf_count(case: Case) -> int:
    """Return the number of modules without children; an MLP or an attention counts as two."""
    modules = (module for _, module in walk(case.model))
    return sum(
        len(m.apart(1)) or 1 if isinstance(m, Leaf) else not (isinstance(m, Block) and m.children)
        for m in modules
    )


def canonical_children(block: Block) -> dict[str, str]:
    """Return for each child the name it should have: its kind and a number."""
    counts: dict[str, int] = {}
    names = {}
    for child in block.children:
        kind = str(type(child.module).__struct_config__.tag)
        counts[kind] = counts.get(kind, -1) + 1
        names[child.name] = f"{kind}{counts[kind]}"
    return names


def canonical_values(block: Block) -> dict[str, str]:
    """Return for each input and node the name it should have."""
    several = len(block.inputs) > 1
    names = {name: f"x{i}" if several else "x" for i, name in enumerate(block.inputs)}
    return names | {node.name: f"h{i}" for i, node in enumerate(block.nodes)}


def _count_options(case: Case) -> int:
    parts = (
        case.optimizer,
        case.inputs,
        *(getattr(case, options) for options in OPTIONS),
        *case.inputs.tensors,
        *case.inputs.rank_batches,
        *case.schedule,
        *case.wrap,
        *(group.precision for group in case.wrap if group.precision),
        *case.checkpoints,
        *case.freezes,
        *case.tensor_parallel,
        *case.delays,
    )
    fields = sum(1 for part in parts for _ in off_default(part))
    scalars = sum(name in SCALARS for name in off_default(case))
    items = (
        case.ties,
        case.checkpoints,
        case.freezes,
        case.dtypes,
        case.tensor_parallel,
        case.ignored,
    )
    more = (case.delays, case.expect, case.optimizer.exclude, case.inputs.rank_batches)
    told = (group.communication for group in case.wrap)
    return fields + scalars + sum(map(len, (*items, *more, *told)))


def _named(block: Block) -> int:
    names = [*canonical_children(block).items(), *canonical_values(block).items()]
    return sum(name != canonical for name, canonical in names)


def leaf_rank(leaf: Leaf) -> int:
    """Return its place in the order of simplicity, with one for each option that is on, and for
    each part of a list.
    """
    values = astuple(leaf)
    lists = (value for value in values if isinstance(value, tuple))
    return leaf.complexity + sum(value is True for value in values) + sum(map(len, lists))


def _excess(leaf: Leaf) -> int:
    """Return how far its numbers that are no sizes are above their defaults."""
    numbers = {name: n for name, n in defaults(type(leaf)).items() if type(n) is int}
    return sum(getattr(leaf, name) - n for name, n in numbers.items() if name not in leaf.sizes)


def _form_rank(block: Block) -> int:
    returns = get_args(Returns).index(block.returns) + get_args(Passing).index(block.passing)
    ranks = {
        "relu": 0,
        "add": 0,
        "tanh": 1,
        "mul": 1,
        "concat": 2,
        "detach": 2,
        "iadd": 3,
        "attend": 4,
    }
    nodes = sum(
        (not n.grad) + 2 * len(n.alternatives) if isinstance(n, Call) else ranks[n.op]
        for n in block.nodes
    )
    return returns + (block.has_method) + nodes


def _targets(case: Case) -> Iterator[str]:
    yield from (f.target for f in case.freezes)
    yield from (c.module for c in case.checkpoints)
    yield from (d.target for d in case.dtypes)
    yield from case.ignored
    yield from (op.target for op in case.schedule)
