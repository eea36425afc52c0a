"""How new a case is: how seldom the features that it combines were combined before.

Features that interact make a bug; most bugs need one to three of them (Kuhn, Wallace, Gallo:
Software Fault Interactions, TSE 2004). So a conjunction of features is what a branch is to a
coverage-guided fuzzer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fuzzshard.case.case import Case
from fuzzshard.case.features import ALL_FEATURES, features

_INCIDENTAL = ("leaf:", "values:", "loss:", "dtype:")
"""Dimensions in which every case is drawn about evenly, and that bugs rarely ask for in a
conjunction.
"""
GUIDING: tuple[str, ...] = tuple(f for f in ALL_FEATURES if not f.startswith(_INCIDENTAL))
"""The features whose conjunctions count."""
_INDEX = {feature: index for index, feature in enumerate(GUIDING)}

MOST = np.iinfo(np.uint16).max
"""A conjunction that this many cases had is counted no further."""
_WORTH = (1.0 / np.sqrt(1.0 + np.arange(MOST + 1))).astype(np.float32)
"""What a conjunction is worth that so many cases had."""
SIZE_EXPONENT = 2
"""What the number of a case's features counts against it: see :meth:`Conjunctions.rarity`."""

Indices = npt.NDArray[np.intp]


def guiding_features(case: Case) -> Indices:
    """The guiding features of a case as sorted indices into :data:`GUIDING`."""
    return guiding(features(case))


def guiding(names: Iterable[str]) -> Indices:
    """Those of the features ``names`` that guide, as sorted indices into :data:`GUIDING`."""
    return np.array(sorted(_INDEX[name] for name in names if name in _INDEX), dtype=np.intp)


class Conjunctions:
    """How many of the cases added had each feature, each pair and each triple of features."""

    def __init__(self) -> None:
        self._counts = np.full(_TRIPLES[-1], 0, dtype=np.uint16)  # all of its memory at once

    def add(self, present: Indices) -> int:
        """Counts a case; the number of features, pairs and triples that no case had before."""
        cells = _cells(present)
        before = self._counts[cells]
        self._counts[cells] = before + (before < MOST)
        return int((before == 0).sum())

    def count(self, names: Iterable[str]) -> int:
        """How many cases had all of one to three features."""
        first, *others = sorted(_INDEX[name] for name in names)
        i, j, k = [first] * (2 - len(others)) + [first, *others]
        return int(self._counts[i + _PAIRS[j] + _TRIPLES[k]])

    def rarity(self, present: Indices) -> float:
        """The score of a case: the sum of ``1 / sqrt(1 + count)`` over its conjunctions, by its
        size.

        Without the division cases with many features would always win, in which features hide one
        another; divided by the cube of their number, which makes it the mean over triples, those
        with the fewest.
        """
        size: float = max(len(present), 1) ** SIZE_EXPONENT
        return float(_WORTH[self._counts[_cells(present)]].sum()) / size


def _cells(present: Indices) -> Indices:
    """The cells of all features, pairs and triples of sorted indices."""
    i, j, k = _triples(len(present))
    return present[i] + _PAIRS[present[j]] + _TRIPLES[present[k]]


_PAIRS, _TRIPLES = (
    np.array([math.comb(n + size - 1, size) for n in range(len(GUIDING) + 1)], dtype=np.intp)
    for size in (2, 3)
)
"""How many pairs, and triples, of features below ``n`` there are: ``i <= j <= k`` in
colexicographic order is number ``i + _PAIRS[j] + _TRIPLES[k]``."""


@functools.lru_cache(maxsize=128)
def _triples(count: int) -> tuple[Indices, Indices, Indices]:
    """Three arrays: a feature is (i, i, i), a pair (i, i, k), a triple (i, j, k), with i < j < k <
    count.
    """
    cube = np.arange(count)
    i, j, k = (axis.ravel() for axis in np.meshgrid(cube, cube, cube, indexing="ij"))
    ordered = (i <= j) & ((j < k) | ((i == j) & (j == k)))
    return i[ordered], j[ordered], k[ordered]
