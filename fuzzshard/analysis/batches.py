"""How many rows every rank's batches have, where that is not the same everywhere.

Data-parallel training averages the gradients of each rank's own loss, however many rows it had:
DDP's documentation says so ("gradients are averaged"), and no engine weights by the size of a
batch. A last batch that is shorter on some ranks, or of which some rank has nothing, is what a
sampler that drops nothing gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.case import Case, RankBatch, TensorSpec
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Reasons


def num_rows(case: Case, rank: int, batch: int) -> int:
    """Return the rows that data-parallel ``rank`` has in a batch; what is said of that batch alone
    comes first.
    """
    sizes = {item.batch: item.rows for item in case.inputs.rank_batches if item.rank == rank}
    return sizes.get(batch, sizes.get(None, case.inputs.batch))


def rows_of_batch(case: Case, batch: int) -> tuple[int, ...]:
    """Return the rows of a batch on every data-parallel rank."""
    return tuple(num_rows(case, rank, batch) for rank in range(case.mesh.data_size))


def input_specs(case: Case, target: str) -> Sequence[TensorSpec]:
    """Return what the input tensors of a forward of ``target`` are."""
    if not target:
        return case.inputs.tensors
    values = inferred(case).input_values[target]
    return [TensorSpec(kind="ids" if v.ids else "float", size=v.size) for v in values]


def used_batches(case: Case) -> tuple[int, ...]:
    """Return the numbers of the batches that forwards use, in order of first use."""
    return tuple(dict.fromkeys(op.begins.batch for op in case.schedule if op.begins))


def all_rows(case: Case) -> frozenset[int]:
    """Return every number of rows that some rank has in some batch."""
    return frozenset(rows for batch in used_batches(case) for rows in rows_of_batch(case, batch))


def told_rows(case: Case) -> frozenset[int]:
    """Return every number of rows that inputs tell, whether a batch is used or not."""
    return frozenset((case.inputs.batch, *(item.rows for item in case.inputs.rank_batches)))


def least_rows(case: Case, found: Inferred) -> int:
    """Return the fewest rows of a batch on any rank: none, unless something needs values."""
    return max(
        0,
        LOSSES[case.loss].least_rows,
        *(leaf.least_rows(found.width(p), case.inputs.seq) for p, leaf in found.leaves.items()),
    )


def known_items(case: Case) -> tuple[RankBatch, ...]:
    """Return those of ``rank_batches`` for a rank of the mesh and a batch that is used, one for
    each of both.

    A rank beyond the mesh becomes its last one: what made ranks differ on a larger mesh may on a
    smaller one.
    """
    last, used = case.mesh.data_size - 1, {None, *used_batches(case)}
    items: dict[tuple[int, int | None], RankBatch] = {}
    for item in case.inputs.rank_batches:
        if item.batch in used:
            rank = min(item.rank, last)
            items.setdefault(
                (rank, item.batch), RankBatch(rank=rank, rows=item.rows, batch=item.batch)
            )
    return tuple(items.values())


def batch_misfits(case: Case, found: Inferred) -> Reasons:
    """Yield where a rank's own batch size names nothing or cannot be computed with."""
    items, used = case.inputs.rank_batches, used_batches(case)
    if items and case.inputs.same_on_ranks:
        yield (
            "ranks have batches of their own size and the same inputs",
            "set same_on_ranks=False",
        )
    if len({(item.rank, item.batch) for item in items}) < len(items):
        yield "rank_batches names a batch of a rank twice", "remove one"
    for item in items:
        if not 0 <= item.rank < case.mesh.data_size:
            yield (
                f"rank_batches names rank {item.rank} of {case.mesh.data_size} data-parallel "
                "ranks",
                "ranks along the other axes of the mesh have equal data",
            )
        if item.batch is not None and item.batch not in used:
            yield (f"rank_batches names batch {item.batch}, which no forward uses", "remove it")
    least = least_rows(case, found)
    if items and min(item.rows for item in items) < least:
        yield (
            f"rank_batches has fewer than {least} rows, and {_why(case, least)}",
            f"use at least {least}",
        )


def _why(case: Case, least: int) -> str:
    loss = LOSSES[case.loss]
    return loss.why if loss.least_rows == least else "a norm needs two values"
