"""The running totals of a campaign: cases by status, and the features that they had."""

from __future__ import annotations

import threading
from collections import Counter

from fuzzshard.analysis.features import ALL_FEATURES, features
from fuzzshard.case.case import Case
from fuzzshard.events import CaseJudged
from fuzzshard.verdict import Compared, Verdict


class Tally:
    """Counts of one campaign; may be used from any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.features: set[str] = set()
        self._lock = threading.Lock()

    @property
    def cases(self) -> int:
        """The number of cases judged."""
        return self.counts.total()

    def add(self, index: int, case: Case, verdict: Verdict) -> CaseJudged:
        """Counts one case and says what it added."""
        present = features(case)
        with self._lock:
            self.counts[verdict.status] += 1
            new = tuple(sorted(present - self.features))
            self.features.update(new)
            return CaseJudged(
                index=index,
                status=verdict.status,
                seconds=verdict.seconds,
                signature=verdict.signature,
                message=verdict.message,
                new_features=new,
                features_seen=len(self.features),
                features_total=len(ALL_FEATURES),
                compared=how_compared(case, verdict),
            )


def how_compared(case: Case, verdict: Verdict) -> dict[str, Compared]:
    """Return how each engine of a case was compared or, where it was not, why not."""
    notes = {
        name: Compared(comparison=note.partition(":")[0]) for name, note in verdict.notes.items()
    }
    return dict.fromkeys(case.engines, Compared(comparison="")) | notes | verdict.compared
