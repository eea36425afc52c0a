"""One world at work: takes cases, judges them, and follows up on what it finds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from fuzzshard.campaign.control import Control, ControlledWorld
from fuzzshard.campaign.events import (
    CaseHeldBack,
    CaseStarted,
    Event,
    FindingFlaky,
    FindingFound,
    FindingHit,
    FindingSaved,
    InfraTrouble,
    PhaseChanged,
    SaveFailed,
    WorldStarted,
)
from fuzzshard.campaign.judge import CONFIRM_RUNS, Runner, Stopped, judge_clearly
from fuzzshard.campaign.keep import Keeper
from fuzzshard.campaign.known import CUT_OFF, NO_VERDICT, Found, Known, Registry, cause_of
from fuzzshard.campaign.prefetch import Prefetch
from fuzzshard.campaign.quarantine import Quarantine
from fuzzshard.campaign.reduce import Judged, StartCpu, confirm_and_shrink
from fuzzshard.campaign.revisit import revisit
from fuzzshard.campaign.tally import Tally
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.case.order import leaf_count
from fuzzshard.corpus.entry import CorpusEntry, device_kind
from fuzzshard.corpus.store import SCRIPT_FILE
from fuzzshard.errors import InfraError, InvalidEntry
from fuzzshard.guidance import Feedback
from fuzzshard.guidance.reached import Point, Reached
from fuzzshard.verdict import Finding, Status, Verdict

START_ATTEMPTS = 3
"""How often ranks are started before a campaign that cannot begin gives up."""


class WorldHandle(Runner, Protocol):
    """What a campaign needs of a :class:`fuzzshard.world.World`."""

    @property
    def pids(self) -> list[int]:
        """The processes of the live ranks."""

    def take_points(self) -> frozenset[Point]:
        """The points of torch that its ranks reached for the first time since the last call."""

    def close(self) -> None:
        """Kills the ranks."""


@dataclasses.dataclass(frozen=True)
class Shared:
    """What the worlds of a campaign have in common; every part may be used from any thread."""

    cases: Prefetch
    control: Control
    tally: Tally
    registry: Registry
    keeper: Keeper
    quarantine: Quarantine
    reached: Reached
    unfinished: deque[Found] = dataclasses.field(default_factory=deque)
    confirm: int = CONFIRM_RUNS
    shrinking: bool = True
    max_findings: int | None = None
    on_cpu: StartCpu | None = None


class Worker:
    """Runs cases on one world, in one thread, until there are no more or the campaign ends."""

    def __init__(self, shared: Shared, world: WorldHandle, emit: Callable[[Event], None]) -> None:
        self._shared = shared
        self._handle = world
        self._world = ControlledWorld(world, shared.control)
        self._emit = emit
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
                self._finish(unfinished.popleft())

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
                if found.path is not None:
                    self._announce(found)
                self._follow_up(found)
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
                found = self._first_look(found)
        finally:
            detail, judged = shared.tally.add(
                index, case, verdict, idle=idle, points=(*others, *points), new_points=len(points)
            )
            self._emit(detail)
            self._emit(judged)
        if detail.new_pairs or points:
            shared.control.note_new()
        return found

    def _first_look(self, found: Found) -> Found:
        """Saves what nothing known explains, before its verdict is in the journal: no kill loses it."""
        registry = self._shared.registry
        if registry.explains(found) or registry.crowded(found.verdict.signature):
            return found
        return self._save(found)

    def _finish(self, found: Found) -> None:
        """Goes on with a finding where the session that found it was cut off."""
        path, shared = found.path, self._shared
        assert path is not None
        if found.verdict == NO_VERDICT:
            self._judge_again(found.case, path)
            return
        entry = shared.keeper.entry(path)
        confirmation = entry.confirmed
        if found.untold:
            self._announce(found)
        if confirmation is None:
            self._follow_up(found)
            return
        judged = Judged(
            entry.case, found.verdict, confirmation, self._handle.info, note="cut off when it was done"
        )
        if entry.status.is_finding:
            self._report(found, judged, path, entry.replay, self._verify(path, entry))
        else:
            self._report_flaky(entry.signature, judged, path)

    def _judge_again(self, drawn: Case, half_saved: Path) -> None:
        """A case whose session was cut off while it saved the entry: it gets its verdict, or it goes."""
        case, verdict = judge_clearly(self._world, drawn)
        if verdict.status is Status.INFRA:
            return
        if verdict.status.is_finding:
            found = self._first_look(Found(CUT_OFF, case, verdict))
            if found.path is not None:
                self._announce(found)
            self._follow_up(found)
        self._shared.keeper.remove_half(half_saved)

    def _follow_up(self, first: Found) -> None:
        todo = deque([first])
        while todo:
            todo.extend(self._resolve(todo.popleft()))
        self._emit(PhaseChanged(phase="running"))

    def _resolve(self, found: Found) -> list[Found]:
        """Says what a finding is; returns those that were parked meanwhile."""
        registry = self._shared.registry
        signature = found.verdict.signature
        if known := registry.hit(found):
            return self._explain(found, known)
        if found.path is None:
            if registry.crowded(signature):
                return []
            found = self._save(found)
            self._announce(found)
        if not registry.claim(found):
            return []
        if known := registry.hit(found):  # settled between the first look and the claim
            return self._explain(found, known) + registry.settle(found, None)
        known = None
        try:
            known = self._investigate(found)
        except BaseException:
            registry.leave_unresolved(found)
            raise
        finally:
            parked = registry.settle(found, known)
        limit = self._shared.max_findings
        if limit is not None and registry.num_new >= limit:
            self._shared.control.halt(f"{registry.num_new} distinct findings")
        return parked

    def _explain(self, found: Found, known: Known) -> list[Found]:
        if found.path is not None:
            self._shared.keeper.discard(found.path)
        signature, path = known.signature, str(known.path)
        self._emit(FindingHit(index=found.index, signature=signature, path=path, hits=known.hits))
        return []

    def _save(self, found: Found) -> Found:
        try:
            return dataclasses.replace(found, path=self._shared.keeper.save_found(found, self._handle.info))
        except InfraError as error:
            case = msgspec.Raw(codec.encode(found.case))
            self._emit(SaveFailed(signature=found.verdict.signature, problem=str(error), case=case))
            raise

    def _announce(self, found: Found) -> None:
        self._emit(
            FindingFound(
                index=found.index,
                status=found.verdict.status,
                signature=found.verdict.signature,
                summary=describe(found.verdict.findings[0]),
                path=str(found.path),
            )
        )

    def _investigate(self, found: Found) -> Known | None:
        """Confirms, shrinks, saves and verifies; None for a finding that is not confirmed."""
        assert found.path is not None
        path, shared = found.path, self._shared
        judged = self._confirm_and_shrink(found.smaller or found.case, found.verdict, path)
        if judged.confirmation.absent and found.smaller is not None:
            judged = self._confirm_and_shrink(found.case, found.verdict, path)
        if judged.confirmation.absent:
            self._set_aside(found, judged)
            return None
        if not judged.confirmation.reproduced:
            shared.registry.leave_unresolved(found)
            return None
        same = shared.keeper.same_as(judged, path)
        if same is None:
            entry = shared.keeper.save_judged(path, judged)
            self._report(found, judged, path, entry.replay, self._verify(path, entry))
        else:
            path = same
            self._report(found, judged, path, shared.keeper.entry(path).replay, None, duplicate=True)
        cause = cause_of(judged.case, found.case)
        return Known(found.verdict.signature, path, cause, confirmed=judged.confirmation)

    def _confirm_and_shrink(self, case: Case, expected: Verdict, path: Path) -> Judged:
        shared = self._shared
        return confirm_and_shrink(
            [self._world],
            case,
            expected,
            on_cpu=shared.on_cpu,
            emit=self._emit,
            keep=functools.partial(shared.keeper.save_smaller, path),
            runs=shared.confirm,
            shrinking=shared.shrinking,
            seconds_left=shared.control.seconds_left,
        )

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

    def _set_aside(self, found: Found, judged: Judged) -> None:
        assert found.path is not None
        path = self._shared.keeper.save_flaky(found, found.path, judged)
        self._report_flaky(found.verdict.signature, judged, path)

    def _report_flaky(self, signature: str, judged: Judged, path: Path) -> None:
        self._shared.registry.count_flaky()
        self._emit(
            FindingFlaky(
                signature=signature,
                runs=judged.confirmation.runs,
                observed=tuple(judged.confirmation.others),
                path=str(path),
            )
        )

    def _verify(self, path: Path, entry: CorpusEntry) -> bool | None:
        """Whether the reproducer fails; None when there is no time left to run it."""
        if not self._shared.control.running():
            return None
        self._emit(PhaseChanged(phase="verifying"))
        fails = self._shared.keeper.verify(path, entry)
        return fails if self._shared.control.running() else None

    def _report(
        self,
        found: Found,
        judged: Judged,
        path: Path,
        replay: str,
        script_fails: bool | None,
        *,
        duplicate: bool = False,
    ) -> None:
        if not duplicate:
            self._shared.control.note_new()
        self._emit(
            FindingSaved(
                signature=judged.verdict.signature,
                path=str(path),
                replay_command=replay,
                script=str(path / SCRIPT_FILE),
                script_fails=script_fails,
                leaves_before=leaf_count(found.case),
                leaves_after=leaf_count(judged.case),
                runs=judged.confirmation.runs,
                reproduced=judged.confirmation.reproduced,
                others=judged.confirmation.others,
                shrink_evaluations=judged.evaluations,
                shrink_finished=judged.finished,
                duplicate=duplicate,
                note=judged.note,
            )
        )


def describe(finding: Finding) -> str:
    """One line: what was observed where, and what was expected."""
    where = f" of {finding.name}" if finding.name else ""
    when = f" at op {finding.op}" if finding.op >= 0 else ""
    return f"{finding.engine}: {finding.oracle}{where}{when}: {finding.observed}, expected {finding.expected}"
