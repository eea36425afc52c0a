"""In which dtype a gradient was reduced, by the bits that are left of it.

What was reduced in half precision is a number of that dtype, in whatever order it was added up; what was not
is none, but by a chance of one in thousands for each element. So a policy that is not followed shows although
the difference itself is no larger than what half precision rounds.
"""

from __future__ import annotations

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import dtypes_in_play, reduction_dtype
from fuzzshard.case.facts import facts
from fuzzshard.case.sync_flags import flags_set
from fuzzshard.engines.base import DTYPES
from fuzzshard.oracles.compare import Difference
from fuzzshard.training.trace import Key, Trace

HALVES = (torch.float16, torch.bfloat16)

FEWEST = 2
"""Elements that are not zero, of which so many are no numbers of a half precision by chance."""

FEWEST_SUMS = 8
"""The same of sums of two numbers in half precision: of these a third are such numbers again."""


def is_reduced_otherwise(case: Case, difference: Difference, reference: Trace) -> bool:
    """Whether a gradient was not reduced in the half precision of its policy, or in one without a policy.

    Dyadic values are numbers in half precision in any dtype, while nothing rounds. On one rank nothing is
    reduced: whether terms are cast before they are added, no documentation says. And what was reduced in
    several parts is a sum of such numbers: only the first gradient of a parameter tells.
    """
    if difference.key.oracle != "gradient" or case.values == "dyadic" or case.mesh.data_size == 1:
        return False
    if "requires_all_reduce" in flags_set(case):
        return False
    if not _is_first(difference.key, reference):
        return False
    used = {DTYPES[dtype] for dtype in dtypes_in_play(case)}.intersection(HALVES)
    if not used or (both := difference.both) is None:
        return False
    due = DTYPES[reduction_dtype(case, facts(case), difference.key.name, None)]
    observed, expected = both
    if due in HALVES:
        return not _fits(observed, due) and _fits(expected, due, FEWEST)
    return any(_fits(observed, dtype, FEWEST_SUMS) and not _fits(expected, dtype) for dtype in used)


def _is_first(key: Key, reference: Trace) -> bool:
    earlier = (reference.tensors.get(key._replace(op=op)) for op in range(key.op))
    return all(observation is None or observation.tensor is None for observation in earlier)


def _fits(tensor: torch.Tensor, dtype: torch.dtype, fewest: int = 0) -> bool:
    """Whether all finite elements are numbers of ``dtype``, and so many of them are not zero."""
    values = tensor[tensor.isfinite()]
    return int(values.count_nonzero()) >= fewest and torch.equal(values.to(dtype).to(values.dtype), values)
