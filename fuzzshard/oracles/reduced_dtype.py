"""In which dtype a gradient was reduced, by the bits that are left of it.

What was reduced in half precision is a number of that dtype, in whatever order it was added up; what was not
is none, but by a chance of one in thousands for each element. So a policy that is not followed shows although
the difference itself is no larger than what half precision rounds.
"""

from __future__ import annotations

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import dtypes_in_play
from fuzzshard.engines.base import DTYPES
from fuzzshard.oracles.compare import Difference

HALVES = (torch.float16, torch.bfloat16)

FEWEST = 2
"""Elements that are not zero, of which so many are no numbers of a half precision by chance."""


def is_reduced_otherwise(case: Case, difference: Difference) -> bool:
    """Whether one of the two gradients is made of numbers in half precision, and the other is not.

    Dyadic values are such numbers in any dtype, while nothing rounds.
    """
    if difference.key.oracle != "gradient" or case.values == "dyadic" or (both := difference.both) is None:
        return False
    if any(int(tensor.count_nonzero()) < FEWEST for tensor in both):
        return False
    used = {DTYPES[dtype] for dtype in dtypes_in_play(case)}.intersection(HALVES)
    return any(_fits(both[0], dtype) != _fits(both[1], dtype) for dtype in used)


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether all finite elements are numbers of ``dtype``."""
    values = tensor[tensor.isfinite()]
    return torch.equal(values.to(dtype).to(values.dtype), values)
