"""Sums that leave the range of their dtype on one side only.

The reference adds up and divides afterwards. DDP divides first
(torch/csrc/distributed/c10d/reducer.cpp, ``mark_variable_ready_dense``), FSDP1 by a part of the
ranks, and ``fully_shard`` leaves it to the backend: "For fp32/bf16, we do not need to worry about
overflow/underflow" (torch/distributed/fsdp/_fully_shard/ _fsdp_collectives.py). Within a rank the
terms of a parameter that is used twice may be added up in a narrower dtype than the reference's:
whether a term is cast before it is added, nothing says. So one of them has an infinity where
another has a number, or an infinity of the other sign, and both are right. So it is with the loss
of a batch that stages take in parts. A finer run, in which nothing overflows, tells a mistake from
that.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.case import Case
from fuzzshard.oracles.compare import Difference


def first_overflow(case: Case, found: Sequence[Difference]) -> int:
    """The first op at which something differs where it is infinite or no number; else the end.

    It and what comes then may follow from that, so the precision of the case says nothing of it.
    """
    return min((d.key.op for d in found if _overflowed(d)), default=len(case.schedule))


def _overflowed(difference: Difference) -> bool:
    if (both := difference.both) is None:
        return False
    observed, expected = both
    lost = ~(observed.isfinite() & expected.isfinite())
    a, b = observed[lost], expected[lost]
    return bool(((a != b) & ~(a.isnan() & b.isnan())).any())
