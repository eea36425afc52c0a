"""Which parts of a minimal case it needs: what each simplification of it shows, as a table."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fuzzshard.campaign.smallest import Smallest
from fuzzshard.case.codec import encode
from fuzzshard.case.describe import describe
from fuzzshard.corpus.entry import Culprit
from fuzzshard.shrink.nameable import nameable_edits
from fuzzshard.verdict import Status

MOST_CULPRITS = 40
MOST_CHANGES = 3
"""An edit that takes more along (a module with its group, its prefetch and its ops) names no culprit."""
MOST_EVALUATIONS = 30
MOST_SECONDS = 20.0
"""Limits for candidates that shrinking did not come to; once it has finished there are hardly any."""


def find_culprits(best: Smallest) -> tuple[Culprit, ...]:
    """For every single edit of the smallest case that makes the finding go away, what is seen instead.

    The reducer has run nearly all of them: that none of them fails is what makes the case minimal. Those that
    gave no verdict are left out.
    """
    found = dict.fromkeys(_rows(best))
    return tuple(Culprit(change=change, outcome=outcome) for change, outcome in found)[:MOST_CULPRITS]


def _rows(best: Smallest) -> Iterator[tuple[str, str]]:
    minimal, most, until = best.case, best.evaluations + MOST_EVALUATIONS, time.monotonic() + MOST_SECONDS
    for candidate in nameable_edits(minimal):
        if time.monotonic() >= until:
            return
        if (key := encode(candidate)) not in best.tried:
            if best.evaluations >= most:
                continue
            best.still_fails(candidate)
        outcome, fails = best.tried[key]
        phrases = describe(minimal, candidate)
        if not fails and outcome != Status.INFRA and len(phrases) <= MOST_CHANGES:
            yield "; ".join(phrases), outcome
