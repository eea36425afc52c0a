"""The simplifications of a case that a reader can name: an option, an op, a module less."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode
from fuzzshard.case.features import features
from fuzzshard.case.order import size_order
from fuzzshard.shrink.repair import repaired
from fuzzshard.shrink.tiers import TIERS

PREFIXES = "schedule prefix"
"""This pass drops many ops at once; each alone is an edit of another pass."""


def nameable_edits(case: Case) -> Iterator[Case]:
    """Smaller valid cases, one edit away from ``case``, each once.

    Every edit of the first tier (engines, mesh, ops, options), and of the other passes those that take a
    feature away: a rename or a smaller width explains nothing.
    """
    present, size = features(case), size_order(case)
    seen: set[bytes] = set()
    for number, tier in enumerate(TIERS):
        passes = (each for each in tier if each.name != PREFIXES)
        for edit in (edit for each in passes for edit in each.edits(case)):
            candidate = repaired(edit(case))
            if candidate is None or (key := encode(candidate)) in seen or size_order(candidate) >= size:
                continue
            seen.add(key)
            if number == 0 or present - features(candidate):
                yield candidate
