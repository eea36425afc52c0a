"""Changes of a case that make it right: what a reader of a draft asks first."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import CorpusEntry, Culprit
from fuzzshard.shrink.culprits import culprits, subject
from fuzzshard.verdict import Status

ENOUGH = 4
"""Changes after which a case passes that are looked for: the first ones say the most."""


def changes_that_help(
    entry: CorpusEntry,
    status: Callable[[Case], Status],
    num_ranks: int,
    *,
    max_runs: int = 150,
    max_seconds: float = 120.0,
) -> tuple[Culprit, ...]:
    """Changes after which the case passes, one for each thing that they change, and then the
    others known.

    ``status`` runs a case on at most ``num_ranks``. Shrinking knows of simplifications only; of an
    option, another value may say more.
    """
    known = {culprit.change: culprit.outcome for culprit in entry.culprits}
    until, runs, subjects = time.monotonic() + max_seconds, 0, set[str]()

    def outcome_of(phrase: str, candidate: Case) -> str | None:
        nonlocal runs
        if subject(phrase) in subjects or candidate.mesh.size > num_ranks:
            return None
        if phrase not in known:
            if runs >= max_runs or time.monotonic() >= until:
                return None
            runs += 1
            known[phrase] = status(candidate)
        if known[phrase] != Status.PASS:
            return None
        subjects.add(subject(phrase))
        return Status.PASS

    found = tuple(itertools.islice(culprits(entry.case, outcome_of), ENOUGH))
    return (*found, *(culprit for culprit in entry.culprits if culprit not in found))
