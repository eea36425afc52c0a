"""The precision rung: how far half precision alone takes each tensor from the truth in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import in_float64
from fuzzshard.oracles.bound import NoiseBound, distance
from fuzzshard.oracles.compare import Difference
from fuzzshard.training.trace import Trace, cut

ANCHOR_FACTOR = 4.0
"""How many times as far from the low-precision reference an engine may be as that is from the truth.

Both sides round, and the largest element of a tensor is a sample of what rounding may do.
"""


def unrounded(case: Case) -> Case:
    """The case without mixed precision and dtypes of its own, to run in float64 from beginning to end."""
    groups = tuple(replace(group, precision=None) for group in case.wrap)
    fsdp1 = replace(case.fsdp1, precision=None)
    return replace(in_float64(case), wrap=groups, fsdp1=fsdp1, dtypes=())


@dataclasses.dataclass(frozen=True)
class PrecisionBound(NoiseBound):
    """The bound of noise twins in low precision, widened by the reference's own distance to the truth.

    What only the reduction rounds differently (gradients before the first step) is bounded element by
    element, as in full precision: the truth is of no help there.
    """

    truth: Trace = dataclasses.field(default_factory=Trace)

    @property
    @override
    def rounded_otherwise(self) -> Sequence[Trace]:
        """Also the truth: the reference differs from it by rounding alone."""
        return [*self.twins, self.truth]

    @override
    def bound(self, difference: Difference) -> torch.Tensor:
        noise = super().bound(difference)
        reference = self.reference.tensors[difference.key].tensor
        truth = self.truth.tensors[difference.key].tensor
        if self.is_termwise(difference) or reference is None or truth is None or not reference.numel():
            return noise
        return noise + ANCHOR_FACTOR * cut(distance(truth, reference), difference.pieces).max()
