"""What a wrong tensor looks like: a multiple of the expected one, a rank's own, an old one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from fuzzshard.oracles.bound import largest
from fuzzshard.subject.record import Place

CLOSE = 1e-4
"""How far two tensors may be apart, as a part of the largest value, to be alike."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A tensor on one rank, with what it could be: ``own`` is this rank's unreduced gradient."""

    observed: torch.Tensor | None
    expected: torch.Tensor | None
    own: torch.Tensor | None = None
    before: torch.Tensor | None = None
    initial: torch.Tensor | None = None


def looks_like(place: Place, seen: Sequence[Seen], num_ranks: int) -> str:
    """Say what a difference looks like, from what each rank has; empty if it is like nothing.

    ``num_ranks`` are those that get data of their own.
    """
    mine = seen[0]
    if mine.observed is None or mine.expected is None:
        return _absence(place, seen)
    if mine.observed.shape != mine.expected.shape:
        return "another shape"
    if not torch.isfinite(mine.observed).all() and torch.isfinite(mine.expected).all():
        return "infinities or NaN where there should be none"
    if (
        place.kind == "gradients"
        and all(_alike(s.observed, s.own) for s in seen)
        and len(seen) > 1
    ):
        return "equal to this rank's own gradient: never reduced"
    of_rank_zero = _all_alike(s.observed for s in seen) and _alike(mine.observed, mine.own)
    if place.kind == "gradients" and len(seen) > 1 and of_rank_zero:
        return "rank 0's value on all ranks"
    if place.kind in ("parameters", "buffers", "state dict") and place.step >= 0:
        if _alike(mine.observed, mine.initial) and not _alike(mine.expected, mine.initial):
            return "never updated"
        if _alike(mine.observed, mine.before):
            return "stale by one step"
    if place.kind == "gradients" and _alike(mine.observed, mine.before):
        return "stale by one step"
    if not mine.observed.any():
        return "zero everywhere"
    if (factor := _multiple(mine.observed, mine.expected)) is not None:
        return f"every element is {factor:.2f} times the expected{_reason(factor, num_ranks)}"
    apart = not _all_alike(s.observed for s in seen) and _all_alike(s.expected for s in seen)
    return "differs between ranks" if apart else ""


def _absence(place: Place, seen: Sequence[Seen]) -> str:
    if seen[0].observed is not None:
        return f"there are {place.kind} where the plain model has none"
    present = [rank for rank, s in enumerate(seen) if s.observed is not None]
    if present:
        return f"missing here, and there on ranks {', '.join(map(str, present))}"
    return "no gradient" if place.kind == "gradients" else "missing"


def _reason(factor: float, num_ranks: int) -> str:
    if num_ranks > 1 and abs(factor - num_ranks) < 0.01:
        return f": a sum over {num_ranks} ranks where the mean is due"
    if num_ranks > 1 and abs(factor * num_ranks - 1) < 0.01:
        return f": divided by {num_ranks} ranks once too often"
    return ""


def _multiple(observed: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The factor between two tensors, if there is one that fits all elements."""
    one, two = observed.double().flatten(), expected.double().flatten()
    square = two.dot(two).item()
    if not square:
        return None
    factor = one.dot(two).item() / square
    if abs(factor - 1) < 0.005 or abs(factor) < 0.005:
        return None
    return factor if (one - factor * two).abs().max() <= CLOSE * largest(observed) else None


def _alike(one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
    if one is None or two is None or one.shape != two.shape or not one.numel():
        return False
    apart = (one.double() - two.double()).abs().max().item()
    return apart <= CLOSE * max(largest(one), largest(two))


def _all_alike(tensors: Iterable[torch.Tensor | None]) -> bool:
    first, *others = tensors
    return all(_alike(first, other) for other in others)


def sketch(tensor: torch.Tensor | None, other: torch.Tensor | None) -> str:
    """Say what a tensor is where it differs most from another: value, place, dtype, shape."""
    if tensor is None:
        return "nothing"
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if not tensor.numel():
        return kind
    index = 0
    if other is not None and other.shape == tensor.shape:
        apart = (tensor.double() - other.double()).abs().nan_to_num(nan=float("inf"))
        index = int(apart.argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(index), tensor.shape)]
    return f"{tensor.flatten()[index].item():.6g} at {where} of {kind}"
