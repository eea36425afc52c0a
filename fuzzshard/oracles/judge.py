"""Judges differences by the strictest rung of the ladder that applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from fuzzshard.case.case import Case
from fuzzshard.oracles.association import accumulates, adds_in_another_order
from fuzzshard.oracles.bound import NoiseBound, distance
from fuzzshard.oracles.compare import Difference, same_bits
from fuzzshard.training.trace import Trace, cut
from fuzzshard.verdict import MISSING, UNEXPECTED, Finding

MOST_FINDINGS = 12
"""Findings kept per engine and rank: the first ones say where it began."""


def bitwise_applies(case: Case) -> bool:
    """Whether bitwise equality is required although the values are not exact.

    A sum of two terms has one rounding whatever the order, so up to mesh size 2 the reductions are equal,
    when gradients are reduced once. Engines may add three or more terms in another order than plain
    autograd does: the contributions to a value or a module that is used several times, because
    ``fully_shard`` puts autograd nodes at module boundaries; and the gradients of several backwards.
    """
    return case.mesh.size <= 2 and not adds_in_another_order(case)


def exact_applies(case: Case, engine: str) -> bool:
    """Whether exact arithmetic of the reference makes an engine's exact.

    DDP adds a microbatch to the reduced gradient on every rank before it averages: that sum has more bits
    than any of the reference's.
    """
    return engine != "ddp" or not accumulates(case)


def is_exact(reference: Trace, other: Trace) -> bool:
    """Whether the reference gives equal values in both precisions, so that no rounding took place."""
    for key, truth in reference.tensors.items():
        twin = other.tensors[key].tensor
        if truth.tensor is None or twin is None:
            if truth.tensor is not twin:
                return False
        elif not same_bits(truth.tensor.double(), twin.double()):
            return False
    return True


def tensor_findings(
    engine: str,
    differences: Sequence[Difference],
    rung: str,
    bound: NoiseBound | None,
    culprit: Callable[[Difference], str],
    rank: int,
) -> list[Finding]:
    """The differences that the rung does not allow; ``bound`` is None where bitwise equality is due."""
    found = []
    for difference in differences:
        if bound is None:
            error, limit = _error(difference), 0.0
        else:
            explained, error, limit = bound.excess(difference)
            if explained:
                continue
        key = difference.key
        found.append(
            Finding(
                oracle=key.oracle,
                engine=culprit(difference),
                observed=describe(difference.observed, difference),
                expected=describe(difference.expected, difference),
                op=key.op,
                name=key.name,
                rank=rank,
                rung=rung,
                error=error,
                bound=limit,
                detail=_detail(difference, error, limit, bound),
            )
        )
        if len(found) == MOST_FINDINGS:
            break
    return found


GRAY_FACTOR = 64.0
"""An error above its bound by less than this is rounding that the twins underestimated, or a tiny bug."""


GRAY = "gray"


def _detail(difference: Difference, error: float, limit: float, bound: NoiseBound | None) -> str:
    if difference.observed is None:
        return MISSING
    if difference.expected is None:
        return UNEXPECTED
    return GRAY if bound is not None and error <= GRAY_FACTOR * limit else ""


def _error(difference: Difference) -> float:
    observed, expected = difference.observed, difference.expected
    if not difference.comparable:
        return float("inf")
    assert observed is not None
    assert expected is not None
    return float(distance(observed, expected).max())


def describe(tensor: torch.Tensor | None, difference: Difference) -> str:
    """The value of ``tensor`` where the two differ most, for a person."""
    observed, expected = difference.observed, difference.expected
    if tensor is None:
        return "None"
    if not difference.comparable or observed is None or expected is None:
        return f"a tensor of shape {list(tensor.shape)}, {tensor.dtype}"
    error = distance(observed, expected)
    index = torch.unravel_index(error.argmax(), error.shape)
    where = [int(i) for i in index]
    return f"{float(tensor[index]):.9g} at {where} of {list(tensor.shape)}"


def vote(
    engine: str, traces: Mapping[str, Trace], differing: Mapping[str, Sequence[Difference]]
) -> Callable[[Difference], str]:
    """Names the culprit: the reference where another engine agrees bit for bit with ``engine`` against it."""
    disagreeing = {name: {d.key for d in found} for name, found in differing.items()}

    def culprit(difference: Difference) -> str:
        for other, keys in disagreeing.items():
            if other == engine or difference.key not in keys:
                continue
            witness = traces[other].tensors[difference.key]
            a, b = difference.observed, witness.tensor
            if a is None or b is None:
                if a is b:
                    return "reference"
                continue
            if not witness.pieces:
                b = cut(b, difference.pieces)
            elif not difference.pieces:
                a = cut(a, witness.pieces)
            if same_bits(a, b):
                return "reference"
        return engine

    return culprit
