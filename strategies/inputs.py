"""What the root is fed, and the widths a case is built of."""

from __future__ import annotations

import contextlib
import itertools

from msgspec.structs import replace

from fuzzshard.analysis.attention import POSITIONS
from fuzzshard.analysis.batches import least_rows, used_batches
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.case import Case, Inputs, Mesh, RankBatch, TensorSpec
from fuzzshard.case.graph import Block, Call
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf, Value
from fuzzshard.strategies.swarm import IMAGES, Swarm, shards_positions, wants_even
from fuzzshard.strategies.tape import Tape

_EVEN_WIDTHS = (4, 2, 8, 4, 16)
_WIDEST_EXACT = 8
"""Sums over more features need more bits than a float has."""
_ODD_WIDTHS = (3, 5, 6, 7, 5, 3, 9, 17)


def widths(tape: Tape, swarm: Swarm, *, exact: bool) -> tuple[int, ...]:
    """Return the widths of a case, one to three: few, so that values often fit together without a
    projection.
    """
    pool: tuple[int, ...] = _EVEN_WIDTHS
    if "odd_widths" in swarm:
        pool = _ODD_WIDTHS if tape.chance(60) else (*_EVEN_WIDTHS, *_ODD_WIDTHS)
    if wants_even(swarm) and tape.chance(70):
        pool = _EVEN_WIDTHS
    chosen = [tape.pick(pool) for _ in range(tape.weighted(((1, 3), (2, 3), (3, 2))))]
    if "width_one" in swarm and tape.chance(50):
        chosen.append(1)
    return tuple(min(width, _WIDEST_EXACT) for width in chosen) if exact else tuple(chosen)


def inputs(tape: Tape, swarm: Swarm, pool: tuple[int, ...], mesh: Mesh, *, cuda: bool) -> Inputs:
    """Return one to three tensors. Ids are below a width of the pool, so a head can be tied to the
    embedding.
    """
    tensors = []
    count = tape.weighted(((2, 3), (3, 1))) if "several_inputs" in swarm and tape.chance(70) else 1
    for _ in range(count):
        grad = "input_grad" in swarm and tape.chance(60)
        if IMAGES in swarm:
            tensors.append(TensorSpec(size=tape.pick(_IMAGES), requires_grad=grad))
        elif "ids" in swarm and tape.chance(60):
            tensors.append(TensorSpec(kind="ids", size=max(tape.pick(pool), 2)))
        else:
            tensors.append(TensorSpec(size=tape.pick(pool), requires_grad=grad))
    seqs = (2, 4) if "tensor" in swarm else (2, 3)
    seq = tape.pick(seqs) if "sequence" in swarm and tape.chance(85) else 0
    if shards_positions(swarm):  # some of them in twice as many parts as there are ranks
        seq = mesh.shard * tape.pick((2, 1, 4)) * (POSITIONS if cuda else 1)
    return Inputs(
        batch=tape.weighted(((2, 3), (3, 2), (4, 2))),
        seq=seq,
        tensors=tuple(tensors),
        same_on_ranks="same_on_ranks" in swarm,
        on_host=cuda and tape.chance(12),
    )


def differentiable(inputs: Inputs) -> Inputs:
    """Return ``inputs`` of which some require gradients, if they can."""
    if any(tensor.requires_grad for tensor in inputs.tensors):
        return inputs
    tensors = (replace(t, requires_grad=t.kind == "float") for t in inputs.tensors)
    return replace(inputs, tensors=tuple(tensors))


def fitting(root: Block, drawn: Inputs) -> Inputs:
    """Return inputs that a model takes: ``drawn`` as far as it can, or of one width.

    Raises :class:`InvalidCase` where no such inputs fit.
    """
    tables = [_looked_up_in(root, name) for name in root.inputs]
    ids = [table and TensorSpec(kind="ids", size=table.example(Value(0)).size) for table in tables]
    floats = [t for t in drawn.tensors if t.kind == "float"] or [TensorSpec(size=4)]
    specs = [*floats, *[floats[-1]] * len(ids)]
    tensors = tuple(found or spec for found, spec in zip(ids, specs, strict=False))
    alike = [
        tuple(found or replace(floats[0], size=width) for found in ids) for width in _ALL_WIDTHS
    ]
    for seq, some in itertools.product(dict.fromkeys((drawn.seq, 2, 4, 0)), (tensors, *alike)):
        data = replace(drawn, seq=seq, tensors=some)
        with contextlib.suppress(InvalidCase):
            inferred(Case(seed=0, model=root, inputs=data, mesh=Mesh(shard=1), schedule=()))
            return data
    raise InvalidCase(
        "no inputs whose tensors have one width fit this model", "pass inputs= as well"
    )


def _looked_up_in(block: Block, value: str) -> Leaf | None:
    """Return the leaf that reads a value of a block as ids, if one does."""
    for node in block.nodes:
        module = block.child(node.module) if isinstance(node, Call) else None
        for index, argument in enumerate(node.args):
            if argument != value:
                continue
            if isinstance(module, Block) and (leaf := _looked_up_in(module, module.inputs[index])):
                return leaf
            if isinstance(module, Leaf) and "ids" in module.takes:
                return module
    return None


def with_rank_batches(tape: Tape, swarm: Swarm, case: Case, found: Inferred) -> Case:
    """Return a finished case in which ranks have different numbers of rows: in all batches, or in
    one of them.

    One rank is short, as at the end of an epoch; or every rank has a row more than the one before
    it; or each has what it has, a single row or none at all included.
    """
    ranks = range(case.mesh.data_size)
    shares = any(plan.shares_rows for plan in case.tensor_parallel)
    if "rank_batches" not in swarm or case.inputs.same_on_ranks or len(ranks) == 1 or shares:
        return case
    usual, batches = case.inputs.batch, used_batches(case)
    least = min(least_rows(case, found), usual)
    batch = tape.pick(batches[::-1]) if len(batches) > 1 and tape.chance(35) else None
    kind = tape.weighted((("short", 5), ("more", 2), ("any", 3)))
    if kind == "short":
        rows = {
            tape.pick(ranks[::-1]): tape.pick(
                [n for n in (1, usual - 1, 0, usual + 1) if n >= least]
            )
        }
    elif kind == "more":
        rows = {rank: usual + rank for rank in ranks[1:]}
    else:
        rows = {rank: least + tape.below(usual + 2 - least) for rank in ranks}
    items = tuple(RankBatch(rank=r, rows=n, batch=batch) for r, n in rows.items() if n != usual)
    return replace(case, inputs=replace(case.inputs, rank_batches=items))


_IMAGES = (4, 12, 16, 48)
"""Square images of one channel or three."""
_ALL_WIDTHS = sorted({1, *_EVEN_WIDTHS, *_ODD_WIDTHS, *_IMAGES})
