"""The running totals of a campaign: cases by status, refusals by message, features seen."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator

from fuzzshard.case.case import Case
from fuzzshard.case.features import ALL_FEATURES, features
from fuzzshard.events import CaseDetail, CaseJudged
from fuzzshard.verdict import Compared, Status, Verdict

MAX_REFUSALS = 500
"""Distinct messages kept; a campaign of weeks must not grow without bound."""


class Tally:
    """Counts of one campaign; may be used from any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.features: set[str] = set()
        self._lock = threading.Lock()

    @property
    def cases(self) -> int:
        """The number of cases judged."""
        return self.counts.total()

    def add(self, index: int, case: Case, verdict: Verdict) -> tuple[CaseDetail, CaseJudged]:
        """Counts one case and says what it added."""
        present = features(case)
        with self._lock:
            self.counts[verdict.status] += 1
            refused = tuple(self._count_refusals(verdict))
            new = tuple(sorted(present - self.features))
            self.features.update(new)
            detail = CaseDetail(refused=refused, compared=how_compared(case, verdict))
            judged = CaseJudged(
                index=index,
                status=verdict.status,
                seconds=verdict.seconds,
                signature=verdict.signature,
                message=verdict.message,
                new_features=new,
                features_seen=len(self.features),
                features_total=len(ALL_FEATURES),
            )
        return detail, judged

    def _count_refusals(self, verdict: Verdict) -> Iterator[str]:
        refused = [f"{engine}: {gist(note)}" for engine, note in verdict.notes.items()]
        if verdict.status in (Status.INFRA, Status.INCONCLUSIVE) or not refused:
            refused += [f"{verdict.status}: {gist(verdict.message)}"] if verdict.message else []
        for message in refused:
            known = message in self.refusals or len(self.refusals) < MAX_REFUSALS
            counted = message if known else "(other messages)"
            self.refusals[counted] += 1
            yield counted


def how_compared(case: Case, verdict: Verdict) -> dict[str, Compared]:
    """How each engine of a case was compared; of one that was not, why not in place of a rung."""
    notes = {name: Compared(rung=note.partition(":")[0]) for name, note in verdict.notes.items()}
    return dict.fromkeys(case.engines, Compared(rung="")) | notes | verdict.compared


def gist(message: str) -> str:
    """What messages of one kind have in common: the first line without names, numbers and
    reprs.
    """
    lines = message.strip().splitlines() or [""]
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", lines[0])
    return re.sub(r"\d+", "N", re.sub(r"\(.*", "(...)", unquoted))[:160]
