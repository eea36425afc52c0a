"""One world at work: takes cases and judges them, until there are no more or the campaign ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from fuzzshard.campaign.control import ControlledWorld
from fuzzshard.campaign.events import (
    CaseHeldBack,
    CaseStarted,
    Event,
    InfraTrouble,
    PhaseChanged,
    WorldStarted,
)
from fuzzshard.campaign.follow_up import FollowUp
from fuzzshard.campaign.judge import Stopped, judge_clearly
from fuzzshard.campaign.known import Found, Known
from fuzzshard.campaign.revisit import revisit
from fuzzshard.campaign.shared import Shared, WorldHandle
from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import device_kind
from fuzzshard.errors import InfraError, InvalidEntry
from fuzzshard.guidance import Feedback
from fuzzshard.verdict import Status

START_ATTEMPTS = 3
"""How often ranks are started before a campaign that cannot begin gives up."""


class Worker:
    """Runs cases on one world, in one thread, until there are no more or the campaign ends."""

    def __init__(self, shared: Shared, world: WorldHandle, emit: Callable[[Event], None]) -> None:
        self._shared = shared
        self._handle = world
        self._world = ControlledWorld(world, shared.control)
        self._emit = emit
        self._follow_up = FollowUp(shared, self._world, emit)
        self._idle_since: float | None = None

    def work(self) -> None:
        """Returns at the end of the campaign; raises :class:`InfraError` when it cannot go on."""
        try:
            self._emit(PhaseChanged(phase="starting"))
            self._start()
            self._emit(WorldStarted(info=dict(self._handle.info)))
            self._finish_earlier()
            self._take_cases()
        except Stopped:
            pass
        finally:
            self._emit(PhaseChanged(phase="stopped"))

    def _start(self) -> None:
        """Starts the ranks; again if they do not come up, for one of them may have been killed."""
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._world.restart()
                return
            except InfraError:
                if attempt == START_ATTEMPTS:
                    raise

    def _finish_earlier(self) -> None:
        """Goes on with what earlier sessions of the campaign found, and did not get done."""
        unfinished = self._shared.unfinished
        while unfinished:
            with contextlib.suppress(IndexError):  # another world was faster
                self._follow_up.finish(unfinished.popleft())

    def _take_cases(self) -> None:
        self._emit(PhaseChanged(phase="running"))
        shared = self._shared
        while shared.control.accepting() and (taken := shared.cases.take()):
            index, drawn = taken
            if (known := shared.quarantine.holds_back(index, drawn)) is not None:
                self._emit(CaseHeldBack(index=index, path=str(known.path)))
                continue
            found = self._judge(index, drawn)
            verdict = found.verdict
            if verdict.status is Status.INFRA:
                count = shared.control.count_infra(verdict)
                self._emit(InfraTrouble(index=index, message=verdict.message, in_a_row=count))
                continue
            shared.control.count_judged()
            for event in shared.quarantine.judged(found.case, verdict):
                self._emit(event)
            if verdict.status.is_finding:
                self._follow_up.pursue(found)
                self._idle_since = None
            elif (known := shared.quarantine.due()) is not None:
                self._revisit(known)
                self._idle_since = None

    def _judge(self, index: int, drawn: Case) -> Found:
        """Runs a case, counts it and tells it; whatever it shows that is not known is saved by then."""
        shared = self._shared
        idle = time.perf_counter() - self._idle_since if self._idle_since is not None else 0.0
        self._emit(CaseStarted(index=index))
        # Points that were reached by what was run to confirm and to shrink.
        others = shared.reached.add(self._handle.take_points())
        case, verdict = judge_clearly(self._world, drawn)
        self._idle_since = time.perf_counter()
        points = shared.reached.add(self._handle.take_points())
        shared.cases.tell(Feedback(drawn, verdict.status is Status.PASS, len(points)))
        found = Found(index, case, verdict)
        try:
            if verdict.status.is_finding:
                found = self._follow_up.first_look(found)
        finally:
            detail, judged = shared.tally.add(
                index, case, verdict, idle=idle, points=(*others, *points), new_points=len(points)
            )
            self._emit(detail)
            self._emit(judged)
        if detail.new_pairs or points:
            shared.control.note_new()
        return found

    def _revisit(self, known: Known) -> None:
        """Asks whether a known finding is still there, if this kind of device can tell."""
        shared = self._shared
        try:
            entry = shared.keeper.entry(known.path)
        except InvalidEntry:  # somebody moved it, in a campaign of weeks
            entry = None
        if entry is None or entry.device != device_kind(self._handle.info):
            shared.quarantine.unclear(known)
            return
        self._emit(PhaseChanged(phase="revisiting"))
        for event in revisit(self._world, known, entry, shared.registry, shared.quarantine):
            self._emit(event)
        self._emit(PhaseChanged(phase="running"))
