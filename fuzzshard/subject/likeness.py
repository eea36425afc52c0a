"""What a wrong tensor looks like: a multiple of the expected one, a rank's own, an old one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fuzzshard.engines.rounding import largest
from fuzzshard.subject.record import Place
from fuzzshard.subject.report import Difference
from fuzzshard.subject.subject import MeshShape

CLOSE = 1e-4
"""How far two tensors may be apart, as a part of the largest value, to be alike."""

NEAR = 0.05
"""The same for what is yet to be compared."""

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

    def difference(self, place: Place, **more: Any) -> Difference:
        """Describe both where they differ most."""
        one, two = self.observed, self.expected
        seen: dict[str, Any] = {"observed": sketch(one, two), "expected": sketch(two, one)}
        return Difference(kind=place.kind, name=place.name, step=place.step, **seen, **more)


Pair = tuple[torch.Tensor, torch.Tensor]
"""A gradient that was observed on one rank, and the expected one."""


@dataclasses.dataclass(frozen=True)
class Likeness:
    """Says what a difference looks like; nothing where it is like nothing that is known.

    ``seen`` is what each rank of the mesh has, in order, or one rank alone where that is much;
    the difference is that of ``rank`` in there. ``gradients`` are all of that step on this rank,
    where the difference is one of gradients. Tensors that are ``close`` are alike
    (:func:`closeness`). The plain model had the batches of all ranks as one if ``of_one_batch``.
    What the expected tensor is like, too, says nothing.
    """

    place: Place
    seen: Sequence[Seen]
    mesh: MeshShape
    rank: int = 0
    gradients: Sequence[Pair] = ()
    close: float = CLOSE
    of_one_batch: bool = False

    def __str__(self) -> str:
        mine = self.seen[self.rank]
        if mine.observed is None or mine.expected is None:
            return self._absence()
        if mine.observed.shape != mine.expected.shape:
            parts = (mine.expected.chunk(n) for n in self.mesh.shards if mine.expected.dim())
            is_part = any(self._alike(mine.observed, p) for of_one in parts for p in of_one)
            return "a shard: made of what one rank has?" if is_part else "another shape"
        if not torch.isfinite(mine.observed).all() and torch.isfinite(mine.expected).all():
            return "infinities or NaN where there should be none"
        return next(self._words(mine, mine.observed, mine.expected), "")

    def _words(self, mine: Seen, observed: torch.Tensor, expected: torch.Tensor) -> Iterator[str]:
        is_gradient = self.place.kind == "gradients"
        reduces = is_gradient and len(self.seen) > 1
        if reduces:
            yield from self._reductions()
            yield from self._sums()
        is_state = self.place.kind in ("parameters", "buffers", "state dict")
        if is_state and self.place.step >= 0 and self._is(mine, mine.initial):
            yield "never updated"
        if (is_gradient or is_state) and self._is(mine, mine.before):
            yield "stale by one step"
        if is_state and observed.dtype != expected.dtype:
            yield f"kept in {observed.dtype}, and in {expected.dtype} in the plain model"
        if not observed.any():
            yield "zero everywhere"
        factor = self._factor(observed, expected)
        if factor is not None and abs(factor - 1) >= self._apart:
            yield f"every element is {factor:.2f} times the expected{self._reason(factor)}"
        if reduces and self.mesh.copies == 1 and (words := self.weighted()):
            yield words
        if self._all_alike([s.expected for s in self.seen]):
            yield from self._between_ranks()
        for number in self.mesh.shards if is_gradient else ():
            if number > 1 and (factors := self._scales(number)) is not None:
                yield (
                    f"of all gradients, shards 0 to {number - 1} are {_listed(factors)} times the "
                    "expected (does each rank clip by the norm of its own shards?)"
                )
        for number in self.mesh.shards:
            if repeats(observed, number, self.close) and (
                not repeats(expected, number, self.close)
            ):
                question = (
                    "are the ranks' shards reduced with one another?"
                    if is_gradient
                    else "does each rank draw the same numbers for its own?"
                )
                yield f"its {number} shards are equal: {question}"

    def _absence(self) -> str:
        if self.seen[self.rank].observed is not None:
            return f"there are {self.place.kind} where the plain model has none"
        present = [str(rank) for rank, s in enumerate(self.seen) if s.observed is not None]
        if present:
            return f"missing here, and there on ranks {', '.join(present)}"
        if self.place.kind != "gradients":
            return "missing"
        never = " of any parameter: perhaps gradient synchronisation is never turned on"
        return f"no gradient{never * (not self.gradients)}"

    def _along(self, over: Sequence[str]) -> list[list[Seen]]:
        """For each rank what those have that differ from it along these axes of the mesh alone."""
        places = [*itertools.product(*map(range, self.mesh.axes.values()))]
        others = [number for number, axis in enumerate(self.mesh.axes) if axis not in over]
        groups = [tuple(at[number] for number in others) for at in places]
        return [
            [s for s, of in zip(self.seen, groups, strict=True) if of == group] for group in groups
        ]

    def _sums(self) -> Iterator[str]:
        """Yield along which axis of equal data each rank has a part of the gradient."""
        for axis in (axis for axis in self.mesh.axes if axis not in self.mesh.data_axes):
            parts = [[s.observed for s in group] for group in self._along([axis])]
            sums = [mean * len(part) for part in parts if (mean := _mean(part)) is not None]
            due = [s.expected for s in self.seen]
            whole = len(sums) == len(due) and all(map(self._alike, sums, due))
            if whole and not all(self._alike(s.observed, s.expected) for s in self.seen):
                yield f"a part of the sum over {axis}: not reduced over {axis}"

    def _between_ranks(self) -> Iterator[str]:
        """Yield between which ranks a tensor differs that all should have alike."""
        there = [s.observed for s in self.seen]
        if self._all_alike(there) or any(tensor is None for tensor in there):
            return
        apart = [
            axis
            for axis in self.mesh.axes.keys() - self.mesh.data_axes
            if not all(self._all_alike([s.observed for s in of]) for of in self._along([axis]))
        ]
        why = f" along {' and '.join(sorted(apart))}, which have equal data: is a sum missing?"
        yield "differs between ranks" + why * bool(apart)

    @property
    def _some_axes(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Axes of the mesh, none of them at first, with what is not reduced if only these are."""
        axes = list(self.mesh.axes)
        for count in range(len(axes) if self.mesh.copies == 1 else 1):
            for over in itertools.combinations(axes, count):
                others = " and ".join(axis for axis in axes if axis not in over)
                yield over, f"not reduced over {others}" if over else "never reduced"

    def _reductions(self) -> Iterator[str]:
        """Yield over which axes of the mesh alone a gradient is a mean."""
        for over, words in self._some_axes:
            if self._all([_mean([s.own for s in group]) for group in self._along(over)]):
                of = " and ".join(over)
                own = "equal to this rank's own gradient"
                yield f"{f'the mean over {of}' if of else own}: {words}"
        first = self.seen[0]
        if self._all_alike([s.observed for s in self.seen]) and self._is(first, first.own):
            yield "rank 0's value on all ranks"

    def _reason(self, factor: float) -> str:
        """Return what may have made a factor."""
        number = self.mesh.data_size
        near = max(0.01, self.close)
        if number > 1 and abs(factor / number - 1) < near:
            return f": perhaps a sum over {number} ranks where the mean is due"
        if number > 1 and abs(factor * number - 1) < near:
            mean = _mean([s.own for s in self.seen])
            if not self.of_one_batch and self._alike(self.seen[self.rank].observed, mean):
                return (
                    ": the mean of the ranks' own gradients, which is right if --train-step "
                    "divides by a constant; divide by len(batches), since the plain model gets "
                    "the batches of all ranks"
                )
            return f": perhaps divided by {number} ranks once too often"
        axes = [(name, self.mesh.axes[name]) for name in self.mesh.data_axes]
        if summed := [name for name, size in axes if size > 1 and abs(factor / size - 1) < near]:
            return f": perhaps a sum over {' or '.join(summed)} where the mean is due"
        if divided := [name for name, size in axes if size > 1 and abs(factor * size - 1) < near]:
            return f": perhaps divided by the ranks of {' or '.join(divided)} once too often"
        clipped = " (so are all gradients: clipped by another norm?)"
        return clipped * (self._scales(1) is not None)

    def weighted(self) -> str:
        """Say with which weights the ranks' own gradients add up, and with which they should."""
        own = [s.own for s in self.seen]
        mine = self.seen[self.rank]
        observed, expected = (self._weights(t, own) for t in (mine.observed, mine.expected))
        if observed is None or expected is None:
            return ""
        pairs = zip(observed, expected, strict=True)
        if max(abs(one - two) for one, two in pairs) < self._apart:
            return ""
        number = len(self.seen)
        equal = all(abs(weight * number - 1) < max(0.01, self.close) for weight in observed)
        missing = (
            f" ({words}?)"
            for over, words in self._some_axes
            if all(
                abs(weight) < self._apart
                for s, weight in zip(self.seen, observed, strict=True)
                if not any(s is other for other in self._along(over)[self.rank])
            )
        )
        return (
            f"the ranks' own gradients, added with the weights {_listed(observed)} in place of "
            f"{_listed(expected)}"
            + " (a mean of the ranks' means, which have unequal counts?)" * equal
            + next(missing, "")
        )

    def with_due(self, due: Sequence[float]) -> Likeness | None:
        """Return the likeness where the ranks' own gradients should have weights like those that
        are ``due``; None if the gradient is no sum of them.

        Whatever scales all of it, as clipping does, makes no difference.
        """
        observed, own = self.seen[0].observed, [s.own for s in self.seen]
        if observed is None or (weights := self._weights(observed, own)) is None:
            return None
        parts = [part.double() * w for part, w in zip(own, due, strict=True) if part is not None]
        expected = (torch.stack(parts).sum(0) * (sum(weights) / sum(due))).to(observed.dtype)
        seen = [dataclasses.replace(s, expected=expected) for s in self.seen]
        return dataclasses.replace(self, seen=seen)

    def _scales(self, number: int) -> list[float] | None:
        """Return the factor of each of ``number`` shards, as ``fully_shard`` cuts along the first
        dimension, if it is the same for that shard of all gradients.

        A shard that fewer than two gradients have says nothing.
        """
        of_shard: list[list[float]] = [[] for _ in range(number)]
        for pair in self.gradients:
            if pair[0].shape != pair[1].shape or not pair[1].dim():
                return None
            for factors, *shards in zip(of_shard, *(t.chunk(number) for t in pair), strict=False):
                factor = self._factor(*shards)
                if factor is None and any(shard.any() for shard in shards):
                    return None
                factors += [] if factor is None else [factor]
        if any(len(factors) < 2 for factors in of_shard):
            return None
        means = [sum(factors) / len(factors) for factors in of_shard]
        apart = (
            abs(factor - mean) / abs(mean)
            for factors, mean in zip(of_shard, means, strict=True)
            for factor in factors
        )
        return means if max(apart) < self._apart else None

    @property
    def _apart(self) -> float:
        """How far two factors are apart that are not the same."""
        return max(0.005, 2 * self.close)

    def _factor(self, observed: torch.Tensor, expected: torch.Tensor) -> float | None:
        """The factor between two tensors, if there is one that fits all elements and is not 0."""
        one, two = observed.double().flatten(), expected.double().flatten()
        square = two.dot(two).item()
        factor = one.dot(two).item() / square if square else 0.0
        if abs(factor) < 0.005:
            return None
        fits = (one - factor * two).abs().max() <= self.close * largest(observed)
        return factor if fits else None

    def _weights(
        self, tensor: torch.Tensor | None, parts: Sequence[torch.Tensor | None]
    ) -> list[float] | None:
        """The weights with which ``parts`` add up to a tensor, if there is one choice of them."""
        if tensor is None or any(part is None or part.shape != tensor.shape for part in parts):
            return None
        columns = torch.stack([part.double().flatten() for part in parts if part is not None], 1)
        if tensor.numel() <= len(parts) or torch.linalg.matrix_rank(columns) < len(parts):
            return None
        target = tensor.double().flatten()
        weights = torch.linalg.lstsq(columns, target).solution
        fits = (columns @ weights - target).abs().max() <= self.close * largest(tensor)
        return [weight.item() for weight in weights] if fits else None

    def _is(self, seen: Seen, other: torch.Tensor | None) -> bool:
        """Return whether what was observed is like ``other``, and what was expected is not."""
        return self._alike(seen.observed, other) and not self._alike(seen.expected, other)

    def _all(self, others: Sequence[torch.Tensor | None]) -> bool:
        """Whether what all ranks observe is like ``others``, and what they expect is not."""
        pairs = [*zip(self.seen, others, strict=True)]
        return all(self._alike(s.observed, other) for s, other in pairs) and not all(
            self._alike(s.expected, other) for s, other in pairs
        )

    def _alike(self, one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
        return _alike(one, two, self.close)

    def _all_alike(self, tensors: Sequence[torch.Tensor | None]) -> bool:
        return all(self._alike(tensors[0], other) for other in tensors[1:])


def near(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return whether two tensors may be the same but for rounding, of whatever precision."""
    return _alike(tensor, other, NEAR)


def repeats(tensor: torch.Tensor, number: int, close: float = CLOSE) -> bool:
    """Return whether a tensor is one block of rows, ``number`` times.

    It is cut along the first dimension as ``fully_shard`` cuts parameters, so the last block may
    be shorter than the others. A constant tensor is no such repetition.
    """
    parts = tensor.chunk(number) if tensor.dim() and tensor.numel() else ()
    if not 1 < number == len(parts) or not (tensor != tensor.flatten()[0]).any():
        return False
    rows = len(parts[-1])
    return all(_alike(parts[0][:rows], part[:rows], close) for part in parts)


def _alike(one: torch.Tensor | None, two: torch.Tensor | None, close: float) -> bool:
    if one is None or two is None or one.shape != two.shape or not one.numel():
        return False
    apart = (one.double() - two.double()).abs().max().item()
    return apart <= close * max(largest(one), largest(two))


def _mean(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the mean of tensors of one shape, None if one is missing."""
    there = [tensor.double() for tensor in tensors if tensor is not None]
    alike = len(there) == len(tensors) and len({tensor.shape for tensor in there}) == 1
    return torch.stack(there).mean(0) if alike else None


def _listed(numbers: Sequence[float]) -> str:
    *others, last = (f"{round(number, 2) + 0.0:.2f}" for number in numbers)
    return f"{', '.join(others)} and {last}" if others else last


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
