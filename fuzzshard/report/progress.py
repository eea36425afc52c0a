"""Where a campaign stands, accumulated from its events."""

from __future__ import annotations

import time
from collections import Counter

from fuzzshard.corpus.entry import Confirmation
from fuzzshard.events import (
    CampaignStarted,
    CaseJudged,
    Continued,
    CorpusLoaded,
    Event,
    FindingFlaky,
    FindingFound,
    FindingHit,
    FindingSaved,
    Finishing,
    KnownCause,
)
from fuzzshard.report.stages import Stages


class Progress:
    """The state that the panel and the progress lines show; :meth:`update` takes every event.

    ``num_findings`` are confirmed and shrunk. ``num_explained`` cases ran into known bugs of
    torch, ``num_hits`` showed a finding that was saved before.
    """

    def __init__(self) -> None:
        self.started: CampaignStarted | None = None
        self.counts: Counter[str] = Counter()
        self.stages = Stages()
        self.coverage: CaseJudged | None = None
        self.corpus: CorpusLoaded | None = None
        self.finishing: Finishing | None = None
        self.num_findings = 0
        self.num_hits = 0
        self.num_explained = 0
        self.num_flaky = 0
        self.last_finding = ""
        self.last_new: float | None = None
        self._begin = time.monotonic()

    @property
    def cases(self) -> int:
        """The number of cases judged."""
        return self.counts.total()

    @property
    def elapsed(self) -> float:
        """Seconds since the campaign started, on this side of the event stream."""
        return time.monotonic() - self._begin

    def _continue(self, before: Continued) -> None:
        self.counts.update(before.counts)
        self.num_findings = before.findings
        self._begin -= before.elapsed

    def update(self, event: Event) -> None:
        """Takes one event into account."""
        self.stages.update(event)
        match event:
            case CampaignStarted():
                self.started = event
                self._begin = time.monotonic()
                if event.continues is not None:
                    self._continue(event.continues)
            case CorpusLoaded():
                self.corpus = event
            case CaseJudged():
                before = self.coverage
                self.counts[event.status] += 1
                self.coverage = event
                if before is None or event.pairs_seen > before.pairs_seen or event.new_features:
                    self.last_new = self.elapsed
            case FindingFound():
                self.last_new = self.elapsed
                self.last_finding = f"{event.signature}  {event.path}"
            case FindingHit():
                self.num_hits += 1
            case KnownCause():
                self.num_explained += 1
            case FindingSaved():
                self.num_findings += not event.duplicate
                rate = Confirmation(runs=event.runs, reproduced=event.reproduced)
                flaky = f" ({rate.text()})" if rate.flaky else ""
                self.last_finding = f"{event.signature}{flaky}  {event.path}"
            case FindingFlaky():
                self.num_flaky += 1
            case Finishing():
                self.finishing = event
        # a campaign begins before it says so: the corpus is read first
        self._begin = min(self._begin, time.monotonic() - event.elapsed)
