"""Which pairs of features came up so far."""

from __future__ import annotations

from collections.abc import Sequence


class Pairs:
    """A set of pairs of names that takes a few kilobytes, where one of tuples takes megabytes.

    For each name it has a bit for each other one, in the order in which names came up.
    """

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._partners: dict[str, int] = {}
        self._num_pairs = 0

    def __len__(self) -> int:
        return self._num_pairs

    def add(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Adds every pair of the sorted ``names``, and returns those that are new."""
        new: list[tuple[str, str]] = []
        bits = [1 << self._bits.setdefault(name, len(self._bits)) for name in names]
        later = 0
        for place in reversed(range(len(names))):
            known = self._partners.get(names[place], 0)
            if missing := later & ~known:
                others = zip(names[place + 1 :], bits[place + 1 :], strict=True)
                new += [(names[place], other) for other, bit in others if missing & bit]
                self._partners[names[place]] = known | later
            later |= bits[place]
        self._num_pairs += len(new)
        return tuple(sorted(new))
