"""Which parameters each optimizer of a case gets."""

from __future__ import annotations

from collections.abc import Iterable

from fuzzshard.case.paths import is_within_any
from fuzzshard.parts.options.optimizer import Optimizer


def shares(optimizer: Optimizer, fqns: Iterable[str]) -> list[list[str]]:
    """Return what each of ``optimizer.each`` gets of parameters; an only one may get all of them,
    as what is left out can be added later.
    """
    if optimizer.second is None:
        return [[*fqns]]
    kept, apart = list[str](), list[str]()
    for fqn in fqns:
        (apart if is_within_any(fqn, optimizer.exclude) else kept).append(fqn)
    return [kept, apart]
