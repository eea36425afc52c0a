"""What a wrong tensor looks like: a multiple of the expected one, a rank's own, an old one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch

from fuzzshard.engines.rounding import largest
from fuzzshard.subject.record import Place

CLOSE = 1e-4
"""How far two tensors may be apart, as a part of the largest value, to be alike."""

ROUNDINGS = 8.0
"""The same in units of the precision that was computed in, which is more in bfloat16."""


def closeness(place: Place, tensor: torch.Tensor | None, computed: torch.dtype) -> float:
    """Return how far tensors at ``place`` may be apart that are alike, as a part of their largest
    value.

    Those that a step computes are as coarse as the dtype that was ``computed`` in; parameters and
    buffers, which only an update changes, as coarse as they are kept.
    """
    kept = place.kind in ("parameters", "buffers", "state dict")
    dtype = tensor.dtype if kept and tensor is not None else computed
    return max(CLOSE, ROUNDINGS * torch.finfo(dtype).eps) if dtype.is_floating_point else CLOSE


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
    place: Place,
    seen: Sequence[Seen],
    num_ranks: int,
    gradients: Sequence[Pair] = (),
    close: float = CLOSE,
) -> str:
    """Say what a difference looks like, from what each rank has; empty if it is like nothing.

    ``num_ranks`` are those that get data of their own. ``gradients`` are all of that step on the
    first rank of ``seen``, where the difference is one of gradients. ``close`` is how far tensors
    may be apart that are alike (:func:`closeness`). What the expected tensor is like, too, says
    nothing.
    """
    mine = seen[0]
    if mine.observed is None or mine.expected is None:
        return _absence(place, seen)
    if mine.observed.shape != mine.expected.shape:
        return "another shape"
    if not torch.isfinite(mine.observed).all() and torch.isfinite(mine.expected).all():
        return "infinities or NaN where there should be none"
    if place.kind == "gradients" and len(seen) > 1:
        if all(_alike(s.observed, s.own, close) for s in seen) and not all(
            _alike(s.expected, s.own, close) for s in seen
        ):
            return "equal to this rank's own gradient: never reduced"
        if _all_alike([s.observed for s in seen], close) and _is(mine, mine.own, close):
            return "rank 0's value on all ranks"
    if place.kind in ("parameters", "buffers", "state dict") and place.step >= 0:
        if _is(mine, mine.initial, close):
            return "never updated"
        if _is(mine, mine.before, close):
            return "stale by one step"
    if place.kind == "gradients" and _is(mine, mine.before, close):
        return "stale by one step"
    if not mine.observed.any():
        return "zero everywhere"
    if (factor := _multiple(mine.observed, mine.expected, close)) is not None:
        reason = _reason(factor, seen, num_ranks, close)
        if not reason and _scaled_parts(gradients, 1, close) is not None:
            reason = " (so are all gradients: clipped by another norm?)"
        return f"every element is {factor:.2f} times the expected{reason}"
    observed, expected = [s.observed for s in seen], [s.expected for s in seen]
    apart = not _all_alike(observed, close) and _all_alike(expected, close)
    return "differs between ranks" if apart else ""


def _absence(place: Place, seen: Sequence[Seen]) -> str:
    if seen[0].observed is not None:
        return f"there are {place.kind} where the plain model has none"
    present = [rank for rank, s in enumerate(seen) if s.observed is not None]
    if present:
        return f"missing here, and there on ranks {', '.join(map(str, present))}"
    return "no gradient" if place.kind == "gradients" else "missing"


def looks_partly_reduced(
    seen: Sequence[Seen], axes: Mapping[str, int], close: float = CLOSE
) -> str:
    """Say over which axes of the mesh alone a gradient is a mean; empty if it is none.

    ``seen`` is in the order of ranks, and all get data of their own.
    """
    ranks = torch.arange(len(seen)).reshape(tuple(axes.values()))
    numbers = range(len(axes))
    for count in numbers[1:]:
        for over in itertools.combinations(numbers, count):
            others = [number for number in numbers if number not in over]
            groups = ranks.permute(*others, *over).flatten(len(others)).flatten(0, -2)
            means = {
                rank: _mean([seen[other].own for other in group])
                for group in groups.tolist()
                for rank in group
            }
            if all(_alike(seen[rank].observed, mean, close) for rank, mean in means.items()) and (
                not all(_alike(seen[rank].expected, mean, close) for rank, mean in means.items())
            ):
                names = [list(axes)[number] for number in (*over, *others)]
                return (
                    f"the mean over {' and '.join(names[:count])}: not reduced over "
                    f"{' and '.join(names[count:])}"
                )
    return ""


def looks_repeated(place: Place, seen: Seen, shards: Iterable[int], close: float = CLOSE) -> str:
    """Say that all shards of a tensor are equal, and should not be; empty if they are not."""
    if seen.observed is None or seen.expected is None:
        return ""
    for number in shards:
        if repeats(seen.observed, number, close) and not repeats(seen.expected, number, close):
            question = (
                "are the ranks' shards reduced with one another?"
                if place.kind == "gradients"
                else "does each rank draw the same numbers for its own?"
            )
            return f"its {number} shards are equal: {question}"
    return ""


def repeats(tensor: torch.Tensor, number: int, close: float = CLOSE) -> bool:
    """Return whether a tensor, which is not constant, has ``number`` shards that are equal as far
    as they go, along the first dimension, as ``fully_shard`` cuts.
    """
    parts = tensor.chunk(number) if tensor.dim() and tensor.numel() else ()
    if not 1 < number == len(parts) or not (tensor != tensor.flatten()[0]).any():
        return False
    rows = len(parts[-1])
    return _all_alike([part[:rows] for part in parts], close)


def _reason(factor: float, seen: Sequence[Seen], num_ranks: int, close: float) -> str:
    """What may have made a factor that has to do with the number of ranks."""
    near = max(0.01, close)
    if num_ranks > 1 and abs(factor / num_ranks - 1) < near:
        return f": perhaps a sum over {num_ranks} ranks where the mean is due"
    if num_ranks > 1 and abs(factor * num_ranks - 1) < near:
        if _alike(seen[0].observed, _mean([s.own for s in seen]), close):
            return (
                ": the mean of the ranks' own gradients, which is right if --train-step divides "
                "by a constant; divide by len(batches), since the plain model gets the batches of "
                "all ranks"
            )
        return f": perhaps divided by {num_ranks} ranks once too often"
    return ""


def _mean(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The mean of tensors of one shape, None if one is missing."""
    there = [tensor.double() for tensor in tensors if tensor is not None]
    alike = len(there) == len(tensors) and len({tensor.shape for tensor in there}) == 1
    return torch.stack(there).mean(0) if alike else None


def _multiple(observed: torch.Tensor, expected: torch.Tensor, close: float) -> float | None:
    """The factor between two tensors, if there is one that fits all elements and is not 1."""
    factor = _factor(observed, expected, close)
    return None if factor is None or abs(factor - 1) < _apart(close) else factor


def _apart(close: float) -> float:
    """How far two factors are apart that are not the same."""
    return max(0.005, 2 * close)


def _factor(observed: torch.Tensor, expected: torch.Tensor, close: float) -> float | None:
    """The factor between two tensors, if there is one that fits all elements and is not 0."""
    one, two = observed.double().flatten(), expected.double().flatten()
    square = two.dot(two).item()
    factor = one.dot(two).item() / square if square else 0.0
    if abs(factor) < 0.005:
        return None
    return factor if (one - factor * two).abs().max() <= close * largest(observed) else None


def looks_weighted(seen: Sequence[Seen], close: float = CLOSE) -> str:
    """Say with which weights the ranks' own gradients add up to a gradient, and with which they
    should; empty if they do not. ``seen`` is in the order of ranks, all with data of their own.
    """
    observed, expected = (
        _weights(tensor, [s.own for s in seen], close)
        for tensor in (seen[0].observed, seen[0].expected)
    )
    if observed is None or expected is None:
        return ""
    pairs = zip(observed, expected, strict=True)
    if max(abs(one - two) for one, two in pairs) < _apart(close):
        return ""
    equal = all(abs(weight * len(seen) - 1) < max(0.01, close) for weight in observed)
    return (
        f"the ranks' own gradients, added with the weights {_listed(observed)} in place of "
        f"{_listed(expected)}"
        + (" (a mean of the ranks' means, which have unequal counts?)" if equal else "")
    )


def weighted_otherwise(
    seen: Sequence[Seen], due: Sequence[float], close: float = CLOSE
) -> tuple[torch.Tensor, str] | None:
    """Return what a gradient would be if the ranks' own had weights like those that are ``due``,
    and how that differs, as :func:`looks_weighted` says it; None if it is no sum of them.

    Whatever scales all of it, as clipping does, makes no difference.
    """
    observed, own = seen[0].observed, [s.own for s in seen]
    if observed is None or (weights := _weights(observed, own, close)) is None:
        return None
    parts = [part.double() * w for part, w in zip(own, due, strict=True) if part is not None]
    expected = (torch.stack(parts).sum(0) * (sum(weights) / sum(due))).to(observed.dtype)
    likeness = looks_weighted([dataclasses.replace(s, expected=expected) for s in seen], close)
    return expected, likeness


def looks_scaled(gradients: Sequence[Pair], shards: Iterable[int], close: float = CLOSE) -> str:
    """Say by which factor each shard of all gradients is wrong; empty if it is not one factor.

    ``shards`` are the numbers of shards that there may be, along the first dimension, as
    ``fully_shard`` cuts.
    """
    for number in shards:
        if number > 1 and (factors := _scaled_parts(gradients, number, close)) is not None:
            return (
                f"of all gradients, shards 0 to {number - 1} are {_listed(factors)} times the "
                "expected (does each rank clip by the norm of its own shards?)"
            )
    return ""


def _scaled_parts(gradients: Sequence[Pair], number: int, close: float) -> list[float] | None:
    """The factor of each of ``number`` parts, if it is the same for that part of all gradients.

    A part that fewer than two gradients have says nothing.
    """
    of_part: list[list[float]] = [[] for _ in range(number)]
    for pair in gradients:
        if pair.observed.shape != pair.expected.shape or not pair.expected.dim():
            return None
        parts = (tensor.chunk(number) for tensor in (pair.observed, pair.expected))
        for factors, observed, expected in zip(of_part, *parts, strict=False):
            factor = _factor(observed, expected, close)
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
    return means if max(apart) < _apart(close) else None


def _weights(
    tensor: torch.Tensor | None, parts: Sequence[torch.Tensor | None], close: float
) -> list[float] | None:
    """The weights with which ``parts`` add up to a tensor, if there is one choice of them."""
    if tensor is None or any(part is None or part.shape != tensor.shape for part in parts):
        return None
    columns = torch.stack([part.double().flatten() for part in parts if part is not None], 1)
    if tensor.numel() <= len(parts) or torch.linalg.matrix_rank(columns) < len(parts):
        return None
    target = tensor.double().flatten()
    weights = torch.linalg.lstsq(columns, target).solution
    fits = (columns @ weights - target).abs().max() <= close * largest(tensor)
    return [weight.item() for weight in weights] if fits else None


def _listed(numbers: Sequence[float]) -> str:
    *others, last = (f"{number:.2f}" for number in numbers)
    return f"{', '.join(others)} and {last}" if others else last


def _is(seen: Seen, other: torch.Tensor | None, close: float) -> bool:
    """Whether what was observed is like ``other``, and what was expected is not."""
    return _alike(seen.observed, other, close) and not _alike(seen.expected, other, close)


def _alike(one: torch.Tensor | None, two: torch.Tensor | None, close: float) -> bool:
    if one is None or two is None or one.shape != two.shape or not one.numel():
        return False
    apart = (one.double() - two.double()).abs().max().item()
    return apart <= close * max(largest(one), largest(two))


def _all_alike(tensors: Sequence[torch.Tensor | None], close: float) -> bool:
    first, *others = tensors
    return all(_alike(first, other, close) for other in others)


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
