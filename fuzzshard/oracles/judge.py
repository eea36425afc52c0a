"""Makes findings of the differences that a comparison does not allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from fuzzshard.case.case import Case
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.oracles.bound import Bound
from fuzzshard.oracles.compare import Difference, agree, distance
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.oracle import MISSING, UNEXPECTED, TensorType
from fuzzshard.training.trace import Observation, Trace
from fuzzshard.verdict import Finding, is_internal

MOST_FINDINGS = 12
"""Findings kept per engine and rank: the first ones say where it began."""


class Run(NamedTuple):
    """The run of one engine on one rank, and that of the reference."""

    case: Case
    engine: str
    trace: Trace
    reference: Trace
    mesh: RankMesh


def tensor_findings(
    engine: str,
    differences: Sequence[Difference],
    comparison: str,
    bound: Bound | None,
    agreeing: Callable[[Difference], tuple[str, ...]],
    rank: int,
) -> list[Finding]:
    """Return the differences that the comparison does not allow; ``bound`` is None where bitwise
    equality is due, and ``agreeing`` names the engines that have the same bits.
    """
    found = []
    for difference in differences:
        if bound is None:
            error, limit = difference.error, 0.0
        else:
            explained, error, limit = bound.excess(difference)
            if explained:
                continue
        key = difference.key
        found.append(
            Finding(
                oracle=key.oracle,
                engine=engine,
                observed=describe(difference.observed, difference),
                expected=describe(difference.expected, difference),
                op=key.op,
                name=key.name,
                rank=rank,
                comparison=comparison,
                error=error,
                bound=limit,
                detail=_detail(difference),
                agrees_with=agreeing(difference),
            )
        )
        if len(found) >= MOST_FINDINGS and not is_internal(found):
            break
    return found


def _detail(difference: Difference) -> str:
    if difference.observed is None:
        return MISSING
    if difference.expected is None:
        return UNEXPECTED
    return ""


def describe(tensor: torch.Tensor | None, difference: Difference) -> str:
    """Return the value of ``tensor`` where the two differ most, for a person."""
    observed, expected = difference.observed, difference.expected
    if tensor is None:
        return "None"
    if observed is None or expected is None:
        return str(TensorType(tuple(tensor.shape), str(tensor.dtype)))
    if not difference.comparable:
        place = str(tensor.device) if observed.device != expected.device else ""
        return str(TensorType(tuple(tensor.shape), str(tensor.dtype), place))
    error = distance(observed, expected)
    index = torch.unravel_index(error.argmax(), error.shape)
    where = [int(i) for i in index]
    return f"{float(tensor[index]):.9g} at {where} of {list(tensor.shape)}"


def agreement(
    engine: str,
    traces: Mapping[str, Trace],
    differing: Mapping[str, Sequence[Difference]],
) -> Callable[[Difference], tuple[str, ...]]:
    """Returns what tells of a difference of ``engine`` which other engines differ from the
    reference there, too, and have the same bits.
    """
    others = {name: {d.key for d in found} for name, found in differing.items() if name != engine}

    def agreeing(difference: Difference) -> tuple[str, ...]:
        key = difference.key
        truth = traces[REFERENCE.name].tensors[key].tensor
        return tuple(
            name
            for name, keys in others.items()
            if key in keys and _agrees(difference, traces[name].tensors[key], truth)
        )

    return agreeing


def _agrees(difference: Difference, other: Observation, truth: torch.Tensor | None) -> bool:
    a, b = difference.observed, other.tensor
    if a is None or b is None:
        return a is b
    shape = b.shape if truth is None else truth.shape
    return agree(shape, (a, difference.pieces), (b, other.pieces))
