"""Which known bugs are the likeliest behind a finding, by what they were behind before."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from fuzzshard.analysis.features import features
from fuzzshard.case.case import Case

Causes = tuple[str, ...]
"""The mends that together cure a finding."""


class Example(NamedTuple):
    """The signature of a finding with a known cause, and the features that it needs."""

    signature: str
    features: frozenset[str]


OTHER_PART = (0.3, 0.5, 0.01, 0.1)
"""How much a finding counts that has another status, engine, oracle or other detail in its
signature than the one that is asked about: their product.
"""
OTHER_FEATURES = 0.1
"""How much a cause counts if the case lacks what made each saved finding of it."""


class Experience:
    """Counts which causes the findings of this campaign and the saved ones had; may be used from
    any thread.
    """

    def __init__(self) -> None:
        self._seen: dict[Causes, Counter[str]] = defaultdict(Counter)
        self._examples: dict[Causes, list[Example]] = defaultdict(list)
        self._lock = threading.Lock()

    def count(self, signature: str, causes: Sequence[str]) -> None:
        """Count one more case with this signature that has ``causes``."""
        with self._lock:
            self._seen[tuple(causes)][signature] += 1

    def learn(self, cause: str, example: Example) -> None:
        """Count a saved finding that has this cause."""
        with self._lock:
            self._examples[(cause,)].append(example)

    @property
    def num_cases(self) -> int:
        """How many cases of the campaign the causes explain."""
        with self._lock:
            return sum(seen.total() for seen in self._seen.values())

    @property
    def cases(self) -> Counter[str]:
        """How many cases of the campaign each cause explains."""
        with self._lock:
            counts: Counter[str] = Counter()
            for causes, seen in self._seen.items():
                counts.update(dict.fromkeys(causes, seen.total()))
            return counts

    def likeliest(self, case: Case, signature: str) -> dict[Causes, float]:
        """Return how likely each set of causes that was met before is behind this finding, the
        likeliest first.

        Every finding that a set was behind counts, by how much it looked like this one.
        """
        present = features(case)
        with self._lock:
            known = {*self._seen, *self._examples}
            weights = {causes: self._weight(causes, present, signature) for causes in known}
        return dict(sorted(weights.items(), key=lambda each: (-each[1], each[0])))

    def _weight(self, causes: Causes, present: frozenset[str], signature: str) -> float:
        examples = self._examples.get(causes, ())
        met = Counter(example.signature for example in examples)
        met.update(self._seen.get(causes, {}))
        fits = not examples or any(example.features <= present for example in examples)
        votes = sum(count * _likeness(other, signature) for other, count in met.items())
        return votes if fits else votes * OTHER_FEATURES


def _likeness(one: str, other: str) -> float:
    """Return how much a finding says about another one, by their signatures."""
    pairs = itertools.zip_longest(one.split("/", 3), other.split("/", 3))
    return math.prod(counts for counts, (a, b) in zip(OTHER_PART, pairs, strict=False) if a != b)
