"""Sums of gradients that leave the range of their dtype where their mean does not.

The reference adds up and divides afterwards. DDP divides first (torch/csrc/distributed/c10d/reducer.cpp,
``mark_variable_ready_dense``), FSDP1 by a part of the ranks, and ``fully_shard`` leaves it to the backend:
"For fp32/bf16, we do not need to worry about overflow/underflow" (torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py). So one of them has an infinity where another has a number, and both are right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzshard.oracles.compare import Difference


def first_overflow(found: Sequence[Difference], terms: int, end: int) -> int:
    """The first op at which the reference's sum over ``terms`` ranks overflowed, else ``end``.

    Whatever is computed from then on follows from an infinity on one side only.
    """
    return min((d.key.op for d in found if _overflowed(d, terms)), default=end)


def _overflowed(difference: Difference, terms: int) -> bool:
    observed, expected = difference.observed, difference.expected
    if difference.key.oracle != "gradient" or not difference.comparable:
        return False
    assert observed is not None
    assert expected is not None
    means = observed[expected.isinf() & observed.isfinite()].double().abs()
    return bool(means.numel()) and bool((means * terms > torch.finfo(observed.dtype).max).all())
