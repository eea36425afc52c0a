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


@dataclasses.dataclass(frozen=True)
class Pair:
    """A gradient of one rank, and the expected one."""

    observed: torch.Tensor
    expected: torch.Tensor


def looks_like(
    place: Place, seen: Sequence[Seen], num_ranks: int, gradients: Sequence[Pair] = ()
) -> str:
    """Say what a difference looks like, from what each rank has; empty if it is like nothing.

    ``num_ranks`` are those that get data of their own. ``gradients`` are all of that step on the
    first rank of ``seen``, where the difference is one of gradients.
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
        reason = _reason(factor, num_ranks)
        if not reason and _scaled_parts(gradients, 1) is not None:
            reason = " (so are all gradients: clipped by another norm?)"
        return f"every element is {factor:.2f} times the expected{reason}"
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
    """The factor between two tensors, if there is one that fits all elements and is not 1."""
    factor = _factor(observed, expected)
    return None if factor is None or abs(factor - 1) < 0.005 else factor


def _factor(observed: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The factor between two tensors, if there is one that fits all elements and is not 0."""
    one, two = observed.double().flatten(), expected.double().flatten()
    square = two.dot(two).item()
    factor = one.dot(two).item() / square if square else 0.0
    if abs(factor) < 0.005:
        return None
    return factor if (one - factor * two).abs().max() <= CLOSE * largest(observed) else None


def looks_weighted(seen: Sequence[Seen]) -> str:
    """Say with which weights the ranks' own gradients add up to a gradient, and with which they
    should; empty if they do not. ``seen`` is in the order of ranks, all with data of their own.
    """
    observed, expected = (
        _weights(tensor, [s.own for s in seen]) for tensor in (seen[0].observed, seen[0].expected)
    )
    if observed is None or expected is None:
        return ""
    if max(abs(one - two) for one, two in zip(observed, expected, strict=True)) < 0.005:
        return ""
    equal = all(abs(weight * len(seen) - 1) < 0.01 for weight in observed)
    return (
        f"the ranks' own gradients, added with the weights {_listed(observed)} in place of "
        f"{_listed(expected)}"
        + (" (a mean of the ranks' means, which have unequal counts?)" if equal else "")
    )


def looks_scaled(gradients: Sequence[Pair], shards: Iterable[int]) -> str:
    """Say by which factor each shard of all gradients is wrong; empty if it is not one factor.

    ``shards`` are the numbers of shards that there may be, along the first dimension, as
    ``fully_shard`` cuts.
    """
    for number in shards:
        if number > 1 and (factors := _scaled_parts(gradients, number)) is not None:
            return (
                f"of all gradients, shards 0 to {number - 1} are {_listed(factors)} times the "
                "expected (does each rank clip by the norm of its own shards?)"
            )
    return ""


def _scaled_parts(gradients: Sequence[Pair], number: int) -> list[float] | None:
    """The factor of each of ``number`` parts, if it is the same for that part of all gradients.

    A part that fewer than two gradients have says nothing.
    """
    of_part: list[list[float]] = [[] for _ in range(number)]
    for pair in gradients:
        if pair.observed.shape != pair.expected.shape or not pair.expected.dim():
            return None
        parts = (tensor.chunk(number) for tensor in (pair.observed, pair.expected))
        for factors, observed, expected in zip(of_part, *parts, strict=False):
            factor = _factor(observed, expected)
            if factor is None and (observed.any() or expected.any()):
                return None
            factors += [] if factor is None else [factor]
    if any(len(factors) < 2 for factors in of_part):
        return None
    means = [sum(factors) / len(factors) for factors in of_part]
    apart = (
        abs(f - mean) / abs(mean)
        for factors, mean in zip(of_part, means, strict=True)
        for f in factors
    )
    return means if max(apart) < 0.005 else None


def _weights(
    tensor: torch.Tensor | None, parts: Sequence[torch.Tensor | None]
) -> list[float] | None:
    """The weights with which ``parts`` add up to a tensor, if there is one choice of them."""
    if tensor is None or any(part is None or part.shape != tensor.shape for part in parts):
        return None
    columns = torch.stack([part.double().flatten() for part in parts if part is not None], 1)
    if tensor.numel() <= len(parts) or torch.linalg.matrix_rank(columns) < len(parts):
        return None
    target = tensor.double().flatten()
    weights = torch.linalg.lstsq(columns, target).solution
    fits = (columns @ weights - target).abs().max() <= CLOSE * largest(tensor)
    return [weight.item() for weight in weights] if fits else None


def _listed(numbers: Sequence[float]) -> str:
    *others, last = (f"{number:.2f}" for number in numbers)
    return f"{', '.join(others)} and {last}" if others else last


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
