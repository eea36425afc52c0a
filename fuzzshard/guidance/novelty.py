"""How new a case is: how seldom the features that it combines were combined before.

Features that interact make a bug; most bugs need one to three of them (Kuhn, Wallace, Gallo: Software Fault
Interactions, TSE 2004). So a conjunction of features is what a branch is to a coverage-guided fuzzer.
"""

from __future__ import annotations

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

Indices = npt.NDArray[np.intp]


def guiding_features(case: Case) -> Indices:
    """The guiding features of a case as sorted indices into :data:`GUIDING`."""
    return np.array(sorted(_INDEX[f] for f in features(case) if f in _INDEX), dtype=np.intp)


class Conjunctions:
    """How many of the cases added had each feature, each pair and each triple of features."""

    def __init__(self) -> None:
        # One cube for all three: with i, j, k equal it counts a feature, with two of them equal a pair.
        self._counts = np.zeros((len(GUIDING),) * 3, dtype=np.uint16)

    def add(self, present: Indices) -> int:
        """Counts a case; the number of pairs and triples that no case had before."""
        cell = np.ix_(present, present, present)
        before = self._counts[cell]
        self._counts[cell] = before + (before < np.iinfo(np.uint16).max)
        return _distinct(before == 0)

    def count(self, names: Iterable[str]) -> int:
        """How many cases had all of one to three features."""
        chosen = [_INDEX[name] for name in names]
        i, j, k = (chosen * 3)[:3]
        return int(self._counts[i, j, k])

    def rarity(self, present: Indices) -> float:
        """The score of a case: the sum of ``1 / sqrt(1 + count)`` over its conjunctions, per feature squared.

        Without the division cases with many features would always win, in which features hide one another;
        with the mean over triples (a division by the cube) those with the fewest would.
        """
        weights = 1.0 / np.sqrt(1.0 + self._counts[np.ix_(present, present, present)])
        return float(weights.sum()) / max(len(present), 1) ** 2


def _distinct(cube: npt.NDArray[np.bool_]) -> int:
    """The number of pairs and triples in a symmetric cube: those on the diagonal planes are pairs."""
    pairs = int(np.einsum("iij->ij", cube).sum()) - int(np.einsum("iii->i", cube).sum())
    singles = int(np.einsum("iii->i", cube).sum())
    triples = int(cube.sum()) - 3 * pairs - singles
    return pairs // 2 + triples // 6
