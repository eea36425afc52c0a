"""Passes that lower widths, the batch and the sequence length."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.dims import get_dims, set_dims
from fuzzshard.shrink.passes import Edit, lower, put


def widths_together(case: Case) -> Iterator[Edit]:
    """No width above a bound, and every width the same."""
    dims = get_dims(case)
    present = sorted(set(dims.values()))
    for bound in dict.fromkeys((1, 2, 3, 4, *present)):
        if bound <= present[-1]:
            yield _set({k: min(v, bound) for k, v in dims.items()})
            yield _set(dict.fromkeys(dims, bound))


def widths(case: Case) -> Iterator[Edit]:
    """Equal widths lowered together, then one by one; the batch and the sequence length."""
    dims = get_dims(case)
    for value in sorted(set(dims.values()), reverse=True):
        keys = [k for k, v in dims.items() if v == value]
        for smaller in lower(value):
            yield _set(dict.fromkeys(keys, smaller))
    for key, value in dims.items():
        for smaller in lower(value):
            yield _set({key: smaller})
    for smaller in lower(case.inputs.batch):
        yield put(inputs=replace(case.inputs, batch=smaller))
    if case.inputs.seq:
        rows = case.inputs.batch * case.inputs.seq
        yield put(inputs=replace(case.inputs, batch=min(rows, 2), seq=0))
    for smaller in lower(case.inputs.seq):
        yield put(inputs=replace(case.inputs, seq=smaller))


def _set(sizes: dict[tuple[str, str], int]) -> Edit:
    return lambda case: set_dims(case, sizes)
