"""Which rung of the ladder a case and an engine are judged by, and up to which op."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import is_low_precision
from fuzzshard.case.schedule_state import follow
from fuzzshard.case.units import fsdp1_multiplies_otherwise, fsdp1_normalizes_otherwise
from fuzzshard.oracles.association import MOST_TERMS, accumulates, adds_in_another_order, reorders_from
from fuzzshard.oracles.compare import Difference, same_bits
from fuzzshard.training.trace import Key, Trace


def bitwise_applies(case: Case, engine: str, device: str = "cpu") -> bool:
    """Whether all values of ``engine`` must be bitwise those of the reference although they are not exact."""
    return bitwise_until(case, engine, "gradient", device) >= len(case.schedule)


def bitwise_until(case: Case, engine: str, oracle: str, device: str = "cpu") -> int:
    """The first op from which on ``engine`` may round otherwise than the reference does; else the end.

    A sum of two terms has one rounding whatever the order, so up to mesh size 2 the reductions are equal. On
    larger meshes what is reduced is equal before the first reduction, and everything else before the step
    that follows it. Within a rank sums may be reordered
    (:func:`fuzzshard.oracles.association.reorders_from`).
    """
    if engine == "fsdp1" and (fsdp1_multiplies_otherwise(case) or fsdp1_normalizes_otherwise(case, device)):
        return 0
    offloaded = case.fsdp1.offload or any(group.offload for group in case.wrap)
    if _scales_terms(case, device):
        return 0
    if device == "cuda" and offloaded:
        return 0  # the optimizer of offloaded parameters runs on the CPU, which rounds otherwise
    reduced = _first_reduction(case)
    if oracle not in REDUCED:
        steps = (i for i, op in enumerate(case.schedule) if i > reduced and op.updates)
        reduced = next(steps, len(case.schedule))
    return min(reorders_from(case, engine), reduced)


def split_at_rounding(
    case: Case, engine: str, found: Sequence[Difference], device: str, exact: int = 0
) -> tuple[list[Difference], list[Difference]]:
    """The differences that must not be, since both sides computed the same there, and all others.

    Nothing is rounded before the op at ``exact``.
    """
    oracles = {d.key.oracle for d in found}
    until = {oracle: max(exact, bitwise_until(case, engine, oracle, device)) for oracle in oracles}
    strict = [d for d in found if d.key.op < until[d.key.oracle]]
    return strict, [d for d in found if d.key.op >= until[d.key.oracle]]


REDUCED = ("gradient", "local_gradient")
"""The oracles that look at sums over the mesh before an optimizer has used them."""


def _first_reduction(case: Case) -> int:
    """The first backward that adds up three terms or more over the mesh: none on a smaller one."""
    end = len(case.schedule)
    if case.mesh.size <= MOST_TERMS:
        return end
    return next((at.index for at in follow(case) if at.op.takes and any(at.flags.reduce.values())), end)


def _scales_terms(case: Case, device: str) -> bool:
    """Whether terms are scaled before they are added, by a divide factor that rounds.

    NCCL does so with ``PREMUL_SUM``; and where the shard axis has one rank, ``fully_shard`` divides in place
    of the reduce-scatter, before replicas are added (``foreach_reduce``).
    """
    factors = (op.factor for op in case.schedule if op.factor is not None)
    scaled = device == "cuda" or (case.mesh.shard == 1 and case.mesh.data_size > 1)
    return scaled and any(math.frexp(factor)[0] != 0.5 for factor in factors)


def loose_rung(case: Case) -> str:
    """The rung of a case whose values are rounded differently by every engine."""
    return "precision" if is_low_precision(case) else "bounded"


def exact_applies(case: Case, engine: str) -> bool:
    """Whether exact arithmetic of the reference makes an engine's exact.

    DDP adds a microbatch to the reduced gradient on every rank before it averages: that sum has more bits
    than any of the reference's; so does FSDP1 where it does not shard. In half precision that may be so of
    every sum that engines associate differently.
    """
    if is_low_precision(case) and (case.mesh.data_size > 2 or adds_in_another_order(case)):
        return False
    unsharded = engine == "fsdp1" and (case.fsdp1.strategy == "no_shard" or case.mesh.shard == 1)
    return not (engine == "ddp" or unsharded) or not accumulates(case)


SPARE_BITS = 4
"""By so many bits the magnitudes of terms may exceed their sum without being rounded where it is not."""


def exact_until(reference: Trace, other: Trace, end: int, *, in_parts: bool = False) -> int:
    """The first op in which the reference rounds: its values are not equal in both precisions; else ``end``.

    ``in_parts``: nor would sums of some of the terms only before that, which may be larger than the whole.
    """
    rounded = (key.op for key in reference.tensors if not _is_exact(key, reference, other, in_parts))
    return min(rounded, default=end)


def _is_exact(key: Key, reference: Trace, other: Trace, in_parts: bool) -> bool:
    truth, twin = reference.tensors[key].tensor, other.tensors[key].tensor
    if truth is None or twin is None:
        return truth is twin
    return (not in_parts or _has_spare_bits(truth)) and same_bits(truth.double(), twin.double())


def _has_spare_bits(tensor: torch.Tensor) -> bool:
    """Whether all elements are integers times one unit, and these ``SPARE_BITS`` short of being rounded."""
    values = tensor[tensor.isfinite() & (tensor != 0)].double()
    if not tensor.is_floating_point() or not values.numel():
        return True
    mantissa, exponent = values.frexp()
    integers = mantissa.ldexp(torch.tensor(53, device=mantissa.device)).long()
    lowest = (integers & -integers).double().log2() + exponent - 53
    bits = 1 - math.log2(torch.finfo(tensor.dtype).eps)
    return bool(exponent.max() - lowest.min() <= bits - SPARE_BITS)
