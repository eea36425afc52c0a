"""How new a case is: how seldom the features that it combines were combined before.

Features that interact make a bug; most bugs need one to three of them (Kuhn, Wallace, Gallo: Software Fault
Interactions, TSE 2004). So a conjunction of features is what a branch is to a coverage-guided fuzzer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fuzzshard.case.case import Case
from fuzzshard.case.features import ALL_FEATURES, features

_INCIDENTAL = ("leaf:", "values:", "loss:", "dtype:")
"""Dimensions in which every case is drawn about evenly, and that bugs rarely ask for in a conjunction."""
GUIDING: tuple[str, ...] = tuple(f for f in ALL_FEATURES if not f.startswith(_INCIDENTAL))
"""The features whose conjunctions count."""
_INDEX = {feature: index for index, feature in enumerate(GUIDING)}

SIZE_EXPONENT = 2
"""What the number of a case's features counts against it: see :meth:`Conjunctions.rarity`."""

Indices = npt.NDArray[np.intp]


def guiding_features(case: Case) -> Indices:
    """The guiding features of a case as sorted indices into :data:`GUIDING`."""
    return np.array(sorted(_INDEX[f] for f in features(case) if f in _INDEX), dtype=np.intp)


class Conjunctions:
    """How many of the cases added had each feature, each pair and each triple of features."""

    def __init__(self) -> None:
        # A cell for each of _triples; the rest of the cube is never touched, and so takes no memory.
        self._counts = np.zeros(len(GUIDING) ** 3, dtype=np.uint16)
        self._lost = np.zeros(len(GUIDING) ** 3, dtype=np.float32)  # 1 - 1 / sqrt(1 + count)

    def add(self, present: Indices) -> int:
        """Counts a case; the number of features, pairs and triples that no case had before."""
        cells = _cells(present)
        before = self._counts[cells]
        after = before + (before < np.iinfo(np.uint16).max)
        self._counts[cells] = after
        self._lost[cells] = 1.0 - 1.0 / np.sqrt(1.0 + after)
        return int((before == 0).sum())

    def count(self, names: Iterable[str]) -> int:
        """How many cases had all of one to three features."""
        first, *others = sorted(_INDEX[name] for name in names)
        i, j, k = [first] * (2 - len(others)) + [first, *others]
        return int(self._counts[(i * len(GUIDING) + j) * len(GUIDING) + k])

    def rarity(self, present: Indices) -> float:
        """The score of a case: the sum of ``1 / sqrt(1 + count)`` over its conjunctions, by its size.

        Without the division cases with many features would always win, in which features hide one another;
        divided by the cube of their number, which makes it the mean over triples, those with the fewest.
        """
        lost = self._lost[_cells(present)]
        size: float = max(len(present), 1) ** SIZE_EXPONENT
        return (len(lost) - float(lost.sum())) / size


def _cells(present: Indices) -> Indices:
    """The cells of all features, pairs and triples of sorted indices."""
    i, j, k = _triples(len(present))
    size = len(GUIDING)
    return (present[i] * size + present[j]) * size + present[k]


@functools.lru_cache(maxsize=128)
def _triples(count: int) -> tuple[Indices, Indices, Indices]:
    """Three arrays: a feature is (i, i, i), a pair (i, i, k), a triple (i, j, k), with i < j < k < count."""
    cube = np.arange(count)
    i, j, k = (axis.ravel() for axis in np.meshgrid(cube, cube, cube, indexing="ij"))
    ordered = (i <= j) & ((j < k) | ((i == j) & (j == k)))
    return i[ordered], j[ordered], k[ordered]
