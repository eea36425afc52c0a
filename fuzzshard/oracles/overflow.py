"""Sums that leave the range of their dtype on one side only.

The reference adds up and divides afterwards. DDP divides first
(torch/csrc/distributed/c10d/reducer.cpp, ``mark_variable_ready_dense``), FSDP1 by a part of the
ranks, and ``fully_shard`` leaves it to the backend: "For fp32/bf16, we do not need to worry about
overflow/underflow" (torch/distributed/fsdp/_fully_shard/ _fsdp_collectives.py). Within a rank the
terms of a parameter that is used twice may be added up in a narrower dtype than the reference's:
whether a term is cast before it is added, nothing says. So one of them has an infinity where
another has a number, or an infinity of the other sign, and both are right. So it is with the loss
of a batch that stages take in parts. A finer run tells a mistake from that, up to where it leaves
the range of its own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzshard.case.case import Case
from fuzzshard.oracles.compare import Difference

HUGE = 64.0
"""A sum that overflows on one side is by as much smaller, at most, than the range of its dtype."""


def first_overflow(case: Case, found: Sequence[Difference], *, to_huge: bool = False) -> int:
    """Return the first op at which values differ where one is infinite or NaN; else the end.
    With ``to_huge`` only where the other value is nearly as large as its dtype allows, or not
    finite either.

    From this op on differences may follow from the overflow, so only finer precisions judge them.
    """
    ops = (d.key.op for d in found if _overflowed(d, to_huge))
    return min(ops, default=len(case.schedule))


def _overflowed(difference: Difference, to_huge: bool) -> bool:
    if (both := difference.both) is None:
        return False
    observed, expected = both
    lost = ~(observed.isfinite() & expected.isfinite())
    a, b = observed[lost], expected[lost]
    differ = (a != b) & ~(a.isnan() & b.isnan())
    if to_huge and differ.any():
        none_is_finite = ~(a.isfinite() | b.isfinite())
        huge = torch.minimum(a.abs(), b.abs()) > torch.finfo(a.dtype).max / HUGE
        differ &= huge | none_is_finite
    return bool(differ.any())
