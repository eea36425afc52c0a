"""The first op that rounds, and the first from which on rounding feeds on itself."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from fuzzshard.oracles.compare import Difference, same_bits
from fuzzshard.training.trace import Key, Trace, cut


def before_rounding_feeds_back(found: Iterable[Difference], step: int) -> list[Difference]:
    """Return what differs before the first ``step``, and whatever no rounding explains: what is
    missing, a shape.
    """
    return [d for d in found if d.key.op < step or not d.comparable]


def differs_where_exact(difference: Difference, truth: Trace) -> bool:
    """Return whether an element differs that the reference has as ``truth`` has it, the same run
    in float64, and that fits in float32: what float64 itself rounds does not.
    """
    other = truth.tensors[difference.key].tensor
    if difference.both is None or other is None:
        return False
    observed, expected = difference.both
    exact = expected.double() == cut(other, difference.pieces).double()
    exact &= expected == expected.float()
    return bool((exact & (observed != expected)).any())


SPARE_BITS = 4
"""By so many bits the magnitudes of terms may exceed their sum without being rounded where it is
not.
"""


def exact_until(reference: Trace, other: Trace, end: int, last_bit: float = 0.0) -> int:
    """Return the first op in which the reference rounds something, or some of its terms in sum
    might; else ``end``.

    What is rounded is not equal in ``other``, which is the same run in another precision. A tensor
    may come of terms in the coarsest dtype, whose ``last_bit`` is that of 1.
    """
    in_order = sorted(reference.tensors, key=lambda key: key.op)
    rounded = (key.op for key in in_order if not _is_exact(key, reference, other, last_bit))
    return next(rounded, end)


def _is_exact(key: Key, reference: Trace, other: Trace, last_bit: float) -> bool:
    truth, twin = reference.tensors[key].tensor, other.tensors[key].tensor
    if truth is None or twin is None:
        return truth is twin
    return same_bits(truth.double(), twin.double()) and _has_spare_bits(truth, last_bit)


def _has_spare_bits(tensor: torch.Tensor, last_bit: float) -> bool:
    """Return whether all elements are integers times one unit, and these ``SPARE_BITS`` short of
    being rounded.
    """
    values = tensor[tensor.isfinite() & (tensor != 0)].double()
    if not tensor.is_floating_point() or not values.numel():
        return True
    mantissa, exponent = values.frexp()
    integers = mantissa.ldexp(torch.tensor(53, device=mantissa.device)).long()
    lowest = (integers & -integers).double().log2() + exponent - 53
    bits = 1 - math.log2(max(torch.finfo(tensor.dtype).eps, last_bit))
    return bool(exponent.max() - lowest.min() <= bits - SPARE_BITS)
