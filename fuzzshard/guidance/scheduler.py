"""Which source the next candidate comes from: time goes to where novelty comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random

FLOOR = 0.8
"""The part of all choices that does not depend on earnings: no source starves, so any may come
back.
"""
FIRST_SHARE = 0.7
"""Of that, what goes to the first source (the strategies); the others have equal parts of the
rest.
"""
MEMORY = 0.99
"""How much of what a source has earned still counts after its next case: novelty becomes rarer
with time.
"""
_FIRST_COST = 1.0
"""Every source begins as if it had brought in something at that cost, so that each is tried."""


@dataclasses.dataclass
class _Earnings:
    novelty: float = 1.0
    cost: float = _FIRST_COST


class Scheduler:
    """A bandit over named sources, by novelty for what it costs, with exponential forgetting and a
    floor.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        first, *others = sources
        self._floors = dict.fromkeys(others, FLOOR * (1 - FIRST_SHARE) / max(len(others), 1))
        self._floors[first] = FLOOR * FIRST_SHARE
        self._earnings = {source: _Earnings() for source in sources}

    def choose(self, rng: Random) -> str:
        """A source."""
        shares = self.shares()
        (source,) = rng.choices(list(shares), list(shares.values()))
        return source

    def shares(self) -> dict[str, float]:
        """How often each source is chosen; they sum to 1."""
        rates = {source: earned.novelty / earned.cost for source, earned in self._earnings.items()}
        total = sum(rates.values())
        return {
            source: self._floors[source] + (1 - FLOOR) * rate / total
            for source, rate in rates.items()
        }

    def reward(self, source: str, novelty: float, cost: float) -> None:
        """What a candidate of ``source`` brought in, and what part of the time of a run it
        cost.
        """
        earned = self._earnings[source]
        earned.novelty = MEMORY * earned.novelty + novelty
        earned.cost = MEMORY * earned.cost + cost
