"""Sums of gradients that leave the range of their dtype where their mean does not.

The reference adds up and divides afterwards. DDP divides first (torch/csrc/distributed/c10d/reducer.cpp,
``mark_variable_ready_dense``), FSDP1 by a part of the ranks, and ``fully_shard`` leaves it to the backend:
"For fp32/bf16, we do not need to worry about overflow/underflow" (torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py). So one of them has an infinity where another has a number, and both are right.

Gradients of one parameter may be added up in a narrower dtype than the reference's
(``fuzzshard.oracles.association.narrow_sums``).

Within a rank a part of a sum may overflow in one order and not in another; two infinities of opposite signs,
or an infinity times zero, are no number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fuzzshard.engines.base import DTYPES
from fuzzshard.oracles.compare import Difference
from fuzzshard.parts.dtypes import Dtype


def first_overflow(found: Sequence[Difference], terms: int, narrow: Mapping[str, Dtype], end: int) -> int:
    """The first op at which a sum overflowed on one side only, else ``end``.

    That is the reference's sum over ``terms`` ranks, or an engine's sum of one rank's gradients of the
    parameters in ``narrow``, in the dtype given there. What comes then follows from that infinity.
    """
    overflowed = (d.key.op for d in found if _overflowed(d, terms) or _overflowed_narrow(d, terms, narrow))
    return min(overflowed, default=end)


def first_partial_overflow(found: Sequence[Difference], end: int) -> int:
    """The first op at which both sides overflowed and have different infinities, or none, else ``end``.

    For sums that were added up in two orders.
    """
    return min((d.key.op for d in found if _overflowed_otherwise(d)), default=end)


def _overflowed_otherwise(difference: Difference) -> bool:
    """Whether the same elements overflowed on both sides, and some of them to another end."""
    if difference.key.oracle != "gradient" or (both := difference.both) is None:
        return False
    observed, expected = both
    invalid = ~observed.isfinite()
    if not invalid.any() or not torch.equal(invalid, ~expected.isfinite()):
        return False
    a, b = observed[invalid], expected[invalid]
    return bool(((a != b) & ~(a.isnan() & b.isnan())).any())


def _overflowed(difference: Difference, terms: int) -> bool:
    if difference.key.oracle != "gradient" or (both := difference.both) is None:
        return False
    observed, expected = both
    means = observed[expected.isinf() & observed.isfinite()].double().abs()
    return bool(means.numel()) and bool((means * terms > torch.finfo(observed.dtype).max).all())


def _overflowed_narrow(difference: Difference, terms: int, narrow: Mapping[str, Dtype]) -> bool:
    dtype = narrow.get(difference.key.name)
    if difference.key.oracle != "gradient" or dtype is None or (both := difference.both) is None:
        return False
    observed, expected = both
    means = expected[observed.isinf() & expected.isfinite()].double().abs()
    return bool(means.numel()) and bool((means * terms > torch.finfo(DTYPES[dtype]).max).all())
