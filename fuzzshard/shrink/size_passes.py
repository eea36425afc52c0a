"""Passes that make widths even and small, and lower the batch and the sequence length."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.dims import get_dims, set_dims
from fuzzshard.case.edit import with_item
from fuzzshard.shrink.passes import Edit, lower, put


def widths_together(case: Case) -> Iterator[Edit]:
    """Let no width be above a bound, and every width be the same: first one feature for each rank
    of a shard axis.
    """
    dims = get_dims(case)
    present = sorted(set(dims.values()))
    shard = case.mesh.shard
    for bound in dict.fromkeys((shard, 1, 2, 3, 4, *present)):
        if bound <= max(present[-1], shard):
            yield _set({k: min(v, bound) for k, v in dims.items()})
            yield _set(dict.fromkeys(dims, bound))


def widths(case: Case) -> Iterator[Edit]:
    """Change equal widths together, then one by one; then the batch and the sequence length."""
    dims = get_dims(case)
    for value in sorted(set(dims.values()), reverse=True):
        keys = [k for k, v in dims.items() if v == value]
        for simpler in _simpler(value, case.mesh.shard):
            yield _set(dict.fromkeys(keys, simpler))
    for key, value in dims.items():
        for simpler in _simpler(value, case.mesh.shard):
            yield _set({key: simpler})
    for index, item in enumerate(case.inputs.rank_batches):
        offered = [
            replace(item, rows=rows) for rows in (*lower(item.rows), 1, 2) if rows != item.rows
        ]
        offered += [replace(item, rank=rank) for rank in range(item.rank)]
        for other in dict.fromkeys(offered):
            changed = with_item(case.inputs.rank_batches, index, other)
            yield put(inputs=replace(case.inputs, rank_batches=changed))
    for smaller in lower(case.inputs.batch):
        yield put(inputs=replace(case.inputs, batch=smaller))
    if case.inputs.seq:
        rows = case.inputs.batch * case.inputs.seq
        yield put(inputs=replace(case.inputs, batch=min(rows, 2), seq=0))
    for smaller in lower(case.inputs.seq):
        yield put(inputs=replace(case.inputs, seq=smaller))


def _simpler(value: int, shard: int) -> Iterator[int]:
    """Smaller widths and those next to it that the shard axis divides."""
    rounded = value - value % shard, value + -value % shard
    yield from dict.fromkeys(v for v in (shard, *lower(value), *rounded) if v not in (0, value))


def _set(sizes: dict[tuple[str, str], int]) -> Edit:
    return lambda case: set_dims(case, sizes)
