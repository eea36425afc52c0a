"""Differences that are allowed, one by one, each with its reason. Whatever is not here is a finding.

Refusals (errors) are listed in :mod:`fuzzshard.engines.refusals`, cases that an engine's documentation
excludes in ``engines/*.not_applicable``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fuzzshard.oracles.compare import Difference


class Allowed(NamedTuple):
    """One allowed difference: the engine, what it is, and where it is documented."""

    engine: str
    applies: Callable[[Difference], bool]
    reason: str


def _zero_for_none(difference: Difference) -> bool:
    return (
        difference.key.oracle == "input_gradient"
        and difference.expected is None
        and difference.observed is not None
        and not difference.observed.any()
    )


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        "fully_shard",
        _zero_for_none,
        "an input that is not used gets a gradient of zeros: inputs pass through a torch.autograd.Function, "
        "which materializes undefined gradients as zeros (FunctionCtx.set_materialize_grads)",
    ),
)


def is_allowed(engine: str, difference: Difference) -> bool:
    """Whether a listed reason covers the difference."""
    return any(a.engine == engine and a.applies(difference) for a in ALLOWED)
