"""Which parts of a minimal case it needs: what each simplification of it shows, as a table."""

from __future__ import annotations

import itertools
import time

from fuzzshard.campaign.smallest import Smallest
from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode
from fuzzshard.case.order import size_order
from fuzzshard.corpus.entry import Culprit
from fuzzshard.shrink.culprits import culprits
from fuzzshard.verdict import Status

MOST_CULPRITS = 40
MOST_EVALUATIONS = 30
MOST_SECONDS = 20.0
"""Limits for candidates that shrinking did not come to; once it has finished there are hardly
any.
"""


def find_culprits(best: Smallest) -> tuple[Culprit, ...]:
    """For every simplification of the smallest case that makes the finding go away, what is seen
    instead.

    The reducer has run nearly all of them: that none of them fails is what makes the case minimal.
    Those that gave no verdict are left out.
    """
    minimal, size = best.case, size_order(best.case)
    most, until = best.evaluations + MOST_EVALUATIONS, time.monotonic() + MOST_SECONDS

    def outcome_of(_: str, candidate: Case) -> str | None:
        if (key := encode(candidate)) not in best.tried:
            over = best.evaluations >= most or time.monotonic() >= until
            if over or size_order(candidate) >= size:
                return None
            best.still_fails(candidate)
        outcome, fails = best.tried[key]
        return None if fails or outcome == Status.INFRA else outcome

    return tuple(itertools.islice(culprits(minimal, outcome_of), MOST_CULPRITS))
