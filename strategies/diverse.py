"""Cases that put features together which have seldom been together before, and take little time.

A bug hangs on a few features at once, and of all pairs of features most are rare. So of each few
cases that are drawn, the one comes that has most new pairs for the time that it will take (a
greedy choice as in adaptive random testing: Chen, Leung and Mak, Adaptive Random Testing, ASIAN
2004). Every case that the strategies draw can still come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.analysis.features import features
from fuzzshard.analysis.order import leaf_count
from fuzzshard.case.case import Case

CANDIDATES = 8
"""Of so many drawn cases one comes; drawing them all takes less than judging one (note 0053)."""

_NUMBERS = {name: number for number, name in enumerate(sorted(FEATURES))}


class _Pairs:
    """How often each pair of features has come."""

    def __init__(self) -> None:
        self._counts = np.zeros((len(_NUMBERS), len(_NUMBERS)), np.float32)

    def newness(self, case: Case) -> float:
        """Return the sum of ``1 / (1 + n)`` over the pairs of the case, each of which has come
        ``n`` times.
        """
        return float((1 / (1 + self._counts[self._at(case)])).sum())

    def add(self, case: Case) -> None:
        """Count the pairs of a case."""
        self._counts[self._at(case)] += 1

    @staticmethod
    def _at(case: Case) -> tuple[np.ndarray, ...]:
        numbers = [_NUMBERS[name] for name in features(case)]
        return np.ix_(numbers, numbers)


def expected_time(case: Case) -> float:
    """Return how long a case takes, in no unit: by its size, twice as long with an axis of
    replicas, and four times with a tensor-parallel one. Nearly all of that is for planning what
    to do with DTensors, for all axes at once (note 0053).
    """
    size = max(1, leaf_count(case)) * max(1, len(case.schedule)) * len(case.engines)
    more_axes = (case.mesh.replicate is not None) + 2 * (case.mesh.tensor is not None)
    return float(size**0.5 * 2**more_axes)


def diverse(cases: Iterator[Case]) -> Iterator[Case]:
    """Yield the first of the ``cases``, and then of each :data:`CANDIDATES` the one with most
    newness for its time; equal cases give equal streams.

    Compilation takes ten times as long as all else. It competes with itself alone, so that it
    keeps the share with which it is drawn.
    """
    pairs = _Pairs()
    candidates = list(itertools.islice(cases, 1))
    while candidates:
        compiles = candidates[0].compile is not None
        among = [case for case in candidates if (case.compile is not None) == compiles]
        newest = max(among, key=lambda case: pairs.newness(case) / expected_time(case))
        pairs.add(newest)
        yield newest
        candidates = list(itertools.islice(cases, CANDIDATES))
