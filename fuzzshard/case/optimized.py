"""Which parameters the optimizer of a case is made of."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within


def optimized(case: Case) -> set[str]:
    """Return all parameters but those that it does not get."""
    left_out = case.optimizer.left_out
    return {f for f in facts(case).parameters if not any(is_within(f, path) for path in left_out)}
