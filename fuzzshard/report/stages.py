"""What each world is busy with: which stage of a finding, how far it is, how long it may take."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable

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
    PhaseChanged,
    ShrinkProgress,
)

OF_FINDINGS = ("confirming", "shrinking", "verifying")
"""The phases in which a world works on a finding that nothing known explains."""


@dataclasses.dataclass
class Stage:
    """One phase of one world, which ``began`` on the clock of :func:`time.monotonic`.

    ``usual`` is how many seconds the last one of its kind took, where that is known.
    """

    phase: PhaseChanged
    began: float
    shrunk: ShrinkProgress | None = None
    usual: float | None = None

    def text(self, now: float) -> str:
        """Return what is done, how far it is, and how much longer it takes; not of what."""
        if not self.phase.signature:
            return self.phase.text
        doing = self.phase.text.removesuffix(f" {self.phase.signature}").removesuffix(" of")
        parts = [f"{doing} {clock(now - self.began)}", *self._how_far(now - self.began)]
        return ", ".join(parts)

    def _how_far(self, seconds: float) -> list[str]:
        phase, shrunk = self.phase, self.shrunk
        if phase.phase == "confirming":
            left = seconds / phase.done * (phase.of - phase.done) if phase.done else None
            return [f"run {phase.done + 1} of {phase.of}", *_about(left)]
        if phase.phase == "explaining":
            return [f"run {phase.done + 1}"]
        if shrunk is None:
            return _about(self.usual and self.usual - seconds)
        leaves = counted(shrunk.leaves, "leaf module")
        return [f"{leaves} after {counted(shrunk.evaluations, 'run')}", *_at_most(shrunk, seconds)]


class Stages:
    """The stage of every world; :meth:`update` takes every event."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.of_world: dict[int, Stage] = {}
        self._clock = clock
        self._verifying: float | None = None

    def update(self, event: Event) -> None:
        """Take one event into account."""
        now, before = self._clock(), self.of_world.get(event.world)
        if isinstance(event, PhaseChanged):
            same = before is not None and before.phase.phase == event.phase and event.done > 0
            if before is not None and before.phase.phase == "verifying":
                self._verifying = now - before.began
            usual = self._verifying if event.phase == "verifying" else None
            began = before.began if before is not None and same else now
            self.of_world[event.world] = Stage(event, began, usual=usual)
        elif isinstance(event, ShrinkProgress) and before is not None:
            before.shrunk = event

    def texts(self) -> dict[int, str]:
        """Return the text of every world's stage at this moment."""
        now = self._clock()
        return {world: stage.text(now) for world, stage in sorted(self.of_world.items())}

    @property
    def on_findings(self) -> int:
        """The number of worlds that work on findings."""
        return sum(stage.phase.phase in OF_FINDINGS for stage in self.of_world.values())


def clock(seconds: float) -> str:
    """Return ``"1:02:03"``, or ``"2:03"`` below an hour."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``"1 finding"``, ``"2 findings"`` or ``"12,345 cases"``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def _about(seconds: float | None) -> list[str]:
    return [] if seconds is None or seconds <= 0 else [f"about {clock(seconds)} more"]


def _at_most(shrunk: ShrinkProgress, seconds: float) -> list[str]:
    """Return the limits of shrinking in time; most shrinking ends long before."""
    limits = []
    if shrunk.max_evaluations is not None and shrunk.evaluations:
        runs = max(0, shrunk.max_evaluations - shrunk.evaluations)
        limits.append(seconds / shrunk.evaluations * runs)
    if shrunk.max_seconds is not None:
        limits.append(max(0.0, shrunk.max_seconds - seconds))
    return [f"at most {clock(min(limits))} more"] if limits else []


class CampaignProgress:
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
                self.counts[event.status] += 1
                self.coverage = event
                if event.new_features:
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
