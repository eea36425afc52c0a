"""The pool of interesting cases, and how often each of them is mutated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random

from fuzzshard.case.case import Case
from fuzzshard.guidance.novelty import Indices

MAX_ENTRIES = 500
"""More are no help: what was rare when it came in is common by then."""
TOURNAMENT = 3
"""How many entries are looked at for each choice."""


@dataclasses.dataclass
class Entry:
    """A case that ran. ``bonus`` is for what it was first to reach in torch.

    ``children`` counts the mutants made of it, ``fruitful`` those that became interesting
    themselves.
    """

    case: Case
    present: Indices
    bonus: float = 1.0
    children: int = 0
    fruitful: int = 0

    def energy(self, rarity: float) -> float:
        """The weight with which an entry is chosen that is as rare as ``rarity`` now.

        It falls with every child, less so if children were interesting. After the power schedules
        of AFLFast (Boehme, Pham, Roychoudhury: Coverage-based greybox fuzzing as Markov chain, CCS
        2016): what lies on rare paths gets more, what was fuzzed often gets less.
        """
        return rarity * self.bonus * (1 + self.fruitful) / (1 + self.children)


class Pool:
    """The latest :data:`MAX_ENTRIES` interesting cases."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, case: Case, present: Indices, bonus: float = 1.0) -> None:
        """Takes in a case; the oldest one goes when there are too many."""
        self.entries.append(Entry(case, present, bonus))
        del self.entries[:-MAX_ENTRIES]

    def choose(self, rng: Random, rarity: Callable[[Entry], float]) -> Entry:
        """One of a few entries taken at random, as often as its energy says; the pool must not be
        empty.
        """
        offered = rng.choices(self.entries, k=TOURNAMENT)
        (entry,) = rng.choices(offered, [entry.energy(rarity(entry)) for entry in offered])
        return entry
