"""A wrong factor: an error that is the same multiple of every element is no rounding.

Rounding errors of different elements are independent but for what they have in common (the gradient of one
value that all of them depend on), so their vector is nearly orthogonal to the vector of the elements. That of
a gradient that was divided twice, or not at all, is parallel to it. Least squares tells the two apart where
the largest error says nothing, since half precision may be off by the size of a whole element.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

FEWEST_ELEMENTS = 3.0
"""Of fewer elements the errors may be parallel by chance: any error is where one element is all there is."""

SMALLEST = 0.125
"""The smallest wrong factor, as its distance from one: ranks and microbatches are counted in few."""

PARALLEL = 0.125
"""What may be left of an error without its part along the elements: values are rounded after the mistake."""

NOISE_FACTOR = 8.0
"""How many times as far from one the factor must be as that of any run that is only rounded otherwise."""

MOST_NOISE = 1.0
"""By how much of itself rounding may move the gradient for a factor of it to mean anything."""


def factor(observed: torch.Tensor, expected: torch.Tensor) -> tuple[float, float] | None:
    """The factor by which ``observed`` is ``expected`` (least squares), and the norm of the rest.

    The norm is relative to that of ``expected``. None where there is too little to tell.
    """
    a, b = observed.double().flatten(), expected.double().flatten()
    if not bool((a.isfinite() & b.isfinite()).all()) or not bool(b.any()):
        return None
    scale = b.abs().max()
    a, b = a / scale, b / scale
    square = float(b @ b)
    if square**2 / float(b.pow(4).sum()) < FEWEST_ELEMENTS:  # the participation ratio: n for n of one size
        return None
    slope = float(a @ b) / square
    return slope, float((a - slope * b).norm()) / square**0.5


def allowed_deviation(
    observed: torch.Tensor, expected: torch.Tensor, others: Iterable[torch.Tensor]
) -> float | None:
    """How far from one the factor may be, if the error is parallel to the elements and it is farther.

    ``others`` are what runs have that differ from the expected one by rounding alone. Where one of them
    has left the range of its dtype, rounding may have made any factor.
    """
    if (found := factor(observed, expected)) is None:
        return None
    slope, rest = found
    if abs(slope - 1) < SMALLEST or rest > PARALLEL * abs(slope - 1):
        return None
    noise = []
    for tensor in others:
        if (other := factor(tensor, expected)) is None or other[1] > MOST_NOISE:
            return None
        noise.append(other)
    allowed = NOISE_FACTOR * max((abs(slope - 1) for slope, _ in noise), default=0.0)
    return allowed if abs(slope - 1) > allowed else None
