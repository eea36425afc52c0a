"""Known findings are drawn rarely, so that one easy bug does not fill the campaign, and looked at again.

A case is held back if it has all the features of a known finding's cause. A cause is measured before it may
hold anything back: it must be more than a feature that much of the stream has, and the cases that have it
must indeed show the finding. What it still lets through says whether that stays so.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import deque
from pathlib import Path

from fuzzshard.campaign.events import Event, FindingQuarantined, KnownFinding, QuarantineRefused
from fuzzshard.campaign.known import Known, Registry
from fuzzshard.case.case import Case
from fuzzshard.case.features import features
from fuzzshard.verdict import Status, Verdict

LET_THROUGH_ONE_IN = 20
"""Of the cases that a quarantine is about, one in so many runs all the same."""
LEAST_FEATURES = 2
"""A cause of one feature would take away all that this feature interacts with."""
LEAST_SAMPLE, SAMPLE = 50, 500
"""Cases of the stream on which the share of a cause is measured: at least, and the latest ones at most."""
MOST_SHARE = 0.25
"""A cause that more of the stream has is too wide."""
LEAST_HITS, LEAST_RATE = 3, 0.5
"""Cases with the cause that showed the finding: at least so many, and at least this part of them."""
REVISIT_AFTER = 5
"""When so many cases in a row have the cause and pass, the finding's own case is run again."""


@dataclasses.dataclass
class Ward:
    """What the campaign has seen of the cases that have the cause of one known finding.

    ``quiet`` counts those that passed since the last one that did not; at ``patience`` of them the finding's
    own case is due. ``refused`` says why there is no quarantine, ``active`` that there is one.
    """

    cause: frozenset[str]
    hits: int = 0
    passed: int = 0
    quiet: int = 0
    patience: int = REVISIT_AFTER
    held_back: int = 0
    let_through: int = 0
    active: bool = False
    refused: str = ""
    revisiting: bool = False

    @property
    def rate(self) -> float:
        """The part of the cases with the cause that showed the finding."""
        return self.hits / max(self.hits + self.passed, 1)


class Quarantine:
    """Decides which cases of the stream run; may be used from any thread.

    The decision on a case depends on the seed of the campaign, its index, and what was known when it was
    taken: with one world a campaign with equal seeds holds back the same cases.
    """

    def __init__(self, registry: Registry, seed: int, *, enabled: bool = True) -> None:
        self._registry = registry
        self._seed = seed
        self._enabled = enabled
        self._sample: deque[frozenset[str]] = deque(maxlen=SAMPLE)
        self._wards: dict[Path, Ward] = {}
        self._lock = threading.Lock()

    def holds_back(self, index: int, case: Case) -> Known | None:
        """The known finding because of which this case is not run, with the decision counted."""
        present = features(case)
        with self._lock:
            self._sample.append(present)
            matching = [(k, ward) for k in self._registry.all() if (ward := self._ward(k)).active]
            matching = [(known, ward) for known, ward in matching if ward.cause <= present]
            if not matching:
                return None
            lets_through = random.Random(f"{self._seed}/{index}").random() * LET_THROUGH_ONE_IN < 1
            for _, ward in matching:
                ward.let_through += lets_through
                ward.held_back += not lets_through
            return None if lets_through else matching[0][0]

    def judged(self, case: Case, verdict: Verdict) -> list[Event]:
        """Takes a verdict into account; says which quarantines begin because of it, or cannot.

        Only a pass and the finding itself say something about the cause: any other finding hides it.
        """
        if verdict.status is not Status.PASS and not verdict.status.is_finding:
            return []
        present = features(case)
        events: list[Event] = []
        with self._lock:
            for known in self._registry.all():
                ward = self._ward(known)
                if not ward.cause <= present:
                    continue
                if verdict.status is Status.PASS:
                    ward.passed += 1
                    ward.quiet += 1
                elif known.is_shown_by(verdict):
                    ward.hits += 1
                    ward.quiet = 0
                    events += self._begin(known, ward)
        return events

    def due(self) -> Known | None:
        """A finding whose own case is to be run again: it passes although its cause is there.

        The caller owes :meth:`still_there`, :meth:`unclear` or :meth:`Registry.forget`.
        """
        with self._lock:
            for known in self._registry.all():
                ward = self._ward(known)
                if ward.quiet >= ward.patience and not ward.revisiting:
                    ward.revisiting = True
                    return known
        return None

    def still_there(self, known: Known) -> list[Event]:
        """The finding's own case shows it: the cause is too wide."""
        self.unclear(known)
        with self._lock:
            ward = self._ward(known)
            if not ward.active:
                return []
            ward.active = False
            return [self._refuse(known, ward, "cases that have its cause pass, and its own case does not")]

    def unclear(self, known: Known) -> None:
        """The finding is not known to be gone; the next look takes twice the patience."""
        with self._lock:
            ward = self._ward(known)
            ward.revisiting, ward.quiet = False, 0
            ward.patience *= 2

    def restore(
        self, known: Known, held_back: int, latest: FindingQuarantined | QuarantineRefused | None
    ) -> None:
        """Goes on where an earlier session of the campaign was: ``latest`` is what it said last of ``known``.

        How often cases with the cause pass is measured anew.
        """
        with self._lock:
            ward = self._wards[known.path] = Ward(known.cause, held_back=held_back)
            ward.active = isinstance(latest, FindingQuarantined) and self._enabled
            ward.refused = latest.reason if isinstance(latest, QuarantineRefused) else ""

    def summary(self) -> tuple[KnownFinding, ...]:
        """What this campaign has met of each finding, and what became of it; internal ones come last."""
        with self._lock:
            return tuple(
                line
                for known in sorted(self._registry.all(gone=True), key=lambda known: known.internal)
                if (line := self._line(known, self._ward(known))) is not None
            )

    def _line(self, known: Known, ward: Ward) -> KnownFinding | None:
        if known.saved_before and not (known.hits or ward.held_back or known.gone):
            return None
        return KnownFinding(
            signature=known.signature,
            path=str(known.path),
            hits=known.hits,
            new=not known.saved_before,
            gone=known.gone,
            internal=known.internal,
            rate=known.confirmed.text() if known.confirmed.flaky else "",
            held_back=ward.held_back,
            let_through=ward.let_through,
        )

    def _ward(self, known: Known) -> Ward:
        """The ward of a finding; a cause that was refined in between is measured anew."""
        ward = self._wards.get(known.path)
        if ward is None:
            ward = self._wards[known.path] = Ward(known.cause, hits=known.hits)
        elif ward.cause != known.cause:
            ward.cause, ward.refused, ward.active = known.cause, "", False
        return ward

    def _begin(self, known: Known, ward: Ward) -> list[Event]:
        """Begins a quarantine that is worth it, or says once why there can be none."""
        enough = ward.hits >= LEAST_HITS and ward.rate >= LEAST_RATE and len(self._sample) >= LEAST_SAMPLE
        if not self._enabled or not enough or ward.active or ward.refused:
            return []
        if len(ward.cause) < LEAST_FEATURES:
            return [self._refuse(known, ward, f"its cause is {len(ward.cause)} features")]
        share = sum(ward.cause <= present for present in self._sample) / len(self._sample)
        if share > MOST_SHARE:
            return [self._refuse(known, ward, f"its cause is in {share:.0%} of the cases")]
        ward.active = True
        return [
            FindingQuarantined(
                signature=known.signature, path=str(known.path), cause=tuple(sorted(ward.cause)), share=share
            )
        ]

    def _refuse(self, known: Known, ward: Ward, reason: str) -> Event:
        ward.refused = reason
        return QuarantineRefused(signature=known.signature, path=str(known.path), reason=reason)
