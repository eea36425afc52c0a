"""Sums of gradients that leave the range of their dtype where their mean does not.

The reference adds up and divides afterwards. DDP divides first
(torch/csrc/distributed/c10d/reducer.cpp, ``mark_variable_ready_dense``), FSDP1 by a part of the
ranks, and ``fully_shard`` leaves it to the backend: "For fp32/bf16, we do not need to worry about
overflow/underflow" (torch/distributed/fsdp/_fully_shard/ _fsdp_collectives.py). So one of them has
an infinity where another has a number, and both are right.

Gradients of one parameter may be added up in a narrower dtype than the reference's: whether a term
is cast before it is added, nothing says. Within a rank a part of a sum may overflow in one order
and not in another; two infinities of opposite signs, or an infinity times zero, are no number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import dtypes_in_play
from fuzzshard.engines.base import DTYPES
from fuzzshard.oracles.compare import Difference


def first_overflow(case: Case, found: Sequence[Difference]) -> int:
    """The first op at which a sum over all ranks overflowed on one side only, or otherwise; else
    the end.

    In any dtype of the case. What comes then follows from that infinity.
    """
    most = min(torch.finfo(DTYPES[dtype]).max for dtype in dtypes_in_play(case))
    overflowed = (
        d.key.op
        for d in found
        if _overflowed(d, most / case.mesh.size) or _overflowed_otherwise(d)
    )
    return min(overflowed, default=len(case.schedule))


def _overflowed(difference: Difference, most: float) -> bool:
    """Whether one side is infinite only where the other, a mean, is larger than ``most``."""
    if difference.key.rule.gradient != "reduced" or (both := difference.both) is None:
        return False
    observed, expected = both
    means = torch.cat(
        [a[b.isinf() & a.isfinite()] for a, b in ((observed, expected), (expected, observed))]
    )
    return bool(means.numel()) and bool((means.double().abs() > most).all())


def _overflowed_otherwise(difference: Difference) -> bool:
    """Whether the same elements overflowed on both sides, and some of them to another end."""
    if difference.key.rule.gradient != "reduced" or (both := difference.both) is None:
        return False
    observed, expected = both
    invalid = ~observed.isfinite()
    if not invalid.any() or not torch.equal(invalid, ~expected.isfinite()):
        return False
    a, b = observed[invalid], expected[invalid]
    return bool(((a != b) & ~(a.isnan() & b.isnan())).any())
