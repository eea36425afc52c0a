"""Following up a finding: saved as it was found, then explained, or confirmed, shrunk and saved
again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from fuzzshard.analysis.order import leaf_count
from fuzzshard.campaign.backlog import Suspicion
from fuzzshard.campaign.control import ControlledWorld
from fuzzshard.campaign.explain import explain_first, known_causes, unknown_only
from fuzzshard.campaign.judge import Stopped, judge_clearly
from fuzzshard.campaign.known import CUT_OFF, NO_VERDICT, Found, Known, cause_of
from fuzzshard.campaign.reduce import Judged, confirm_and_shrink
from fuzzshard.campaign.session import Session
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import SCRIPT_FILE, replay_command
from fuzzshard.errors import InfraError
from fuzzshard.events import (
    Event,
    FindingFlaky,
    FindingFound,
    FindingHit,
    FindingSaved,
    InfraTrouble,
    KnownCause,
    PhaseChanged,
    SaveFailed,
)
from fuzzshard.verdict import Finding, Status, Verdict


class FollowUp:
    """Does for one world all that a finding needs after its verdict; used from the thread of that
    world.
    """

    def __init__(
        self, session: Session, world: ControlledWorld, emit: Callable[[Event], None]
    ) -> None:
        self._session = session
        self._world = world
        self._emit = emit

    def save_suspect(self, index: int, case: Case, verdict: Verdict) -> Path:
        """Saves a case whose finding is to be explained, so that no kill loses it."""
        with self._told_if_lost(case, verdict):
            return self._session.store.save_suspect(index, case, verdict)

    def explain(self, suspicion: Suspicion) -> None:
        """Finds out what causes a finding, and does what follows from that."""
        session = self._session
        case, verdict = suspicion.case, suspicion.verdict
        known: tuple[str, ...] = ()
        try:
            if session.mends:
                explained = explain_first(
                    self._world,
                    case,
                    verdict,
                    session.mends,
                    on_mended=suspicion.on_mended,
                    likely=session.registry.experience.likeliest,
                    explaining=lambda signature, done: self._emit(
                        PhaseChanged(phase="explaining", signature=signature, done=done)
                    ),
                )
                verdict, known = explained.verdict, explained.known
        except Stopped:
            self._leave_unresolved([suspicion.cut_off])
            raise
        if known:
            session.registry.experience.count(verdict.signature, known)
        self.conclude(Found(suspicion.index, case, verdict), known, saved=suspicion.path)

    def conclude(
        self, found: Found, known: tuple[str, ...] = (), saved: Path | None = None
    ) -> None:
        """Counts a case, tells its verdict, and pursues what it shows, unless there are ``known``
        causes.

        Whatever is not known is saved before its verdict is in the journal: no kill loses it. So
        was the suspicion, if there was one, which goes away then.
        """
        session = self._session
        case, verdict = found.case, found.verdict
        try:
            if verdict.status.is_finding and not known:
                found = self._first_look(found)
            if saved is not None:
                session.store.remove_half(saved)
        finally:
            judged = session.tally.add(found.index, case, verdict)
            self._emit(judged)
        if judged.new_features:
            session.control.note_new()
        if verdict.status is Status.INFRA:
            path = str(session.store.save_unjudged(case))
            count = session.control.count_infra(verdict)
            self._emit(
                InfraTrouble(index=found.index, message=verdict.message, in_a_row=count, path=path)
            )
            return
        session.control.count_judged()
        if known:
            signature = verdict.signature
            self._emit(KnownCause(index=found.index, signature=signature, causes=known))
        elif verdict.status.is_finding:
            self._pursue(found)

    def _first_look(self, found: Found) -> Found:
        """Saves what nothing known explains."""
        registry = self._session.registry
        if registry.explains(found) or registry.crowded(found.verdict.signature):
            return found
        return self._save(found)

    def _pursue(self, first: Found) -> None:
        """Says what a finding is that had its first look, and what those are that were parked
        meanwhile.
        """
        if first.path is not None:
            self._emit(finding_found(first))
        self.resolve(first)

    def finish(self, found: Found) -> None:
        """Goes on with a finding where the session that found it was cut off."""
        path, session = found.path, self._session
        assert path is not None
        if found.verdict == NO_VERDICT:
            self._judge_again(found, path)
            return
        entry = session.store.entry(path)
        confirmation = entry.confirmed
        if found.untold:
            self._emit(finding_found(found))
        if confirmation is None or entry.unshrunk:
            self.resolve(found)
            return
        judged = Judged(
            entry.case,
            found.verdict,
            confirmation,
            self._world.info,
            note="cut off when it was done",
        )
        if entry.status.is_finding:
            try:
                self._tell_saved(found, judged, path, entry)
            except BaseException:
                self._leave_unresolved([found])
                raise
        else:
            self._tell_flaky(found, judged, path)

    def _judge_again(self, cut_off: Found, half_saved: Path) -> None:
        """A case whose session was cut off while it was explained or saved: it gets its verdict,
        or it goes.
        """
        try:
            case, verdict = judge_clearly(self._world, cut_off.case)
            new = verdict.status.is_finding and not self._is_known(case, verdict)
        except Stopped:
            self._leave_unresolved([cut_off])
            raise
        if verdict.status is Status.INFRA:
            return
        if new:
            self._pursue(self._first_look(Found(CUT_OFF, case, verdict)))
        self._session.store.remove_half(half_saved)

    def _is_known(self, case: Case, stock: Verdict) -> bool:
        """Return whether mends know what torch as it is shows."""
        mends = self._session.mends
        return bool(known_causes(mends, self._world, case, stock))

    def resolve(self, first: Found) -> None:
        """Work on a finding until it is known or saved, and then on those that waited for it to be
        settled.
        """
        todo = deque([first])
        try:
            while todo:
                todo.extend(self._resolve(todo.popleft()))
        except BaseException:
            self._leave_unresolved(todo)
            raise

    def _resolve(self, found: Found) -> list[Found]:
        """Work on one finding, and return those that waited for it to be settled."""
        registry = self._session.registry
        signature = found.verdict.signature
        if known := registry.hit(found):
            return self._explain(found, known)
        if found.path is None:
            if registry.crowded(signature):
                return []
            found = self._save(found)
            self._emit(finding_found(found))
        if not registry.claim(found):
            return []
        if known := registry.hit(found):  # settled between the first look and the claim
            return self._explain(found, known) + registry.settle(found, None)
        try:
            known = self._investigate(found)
        except BaseException:
            self._leave_unresolved([found, *registry.settle(found, None)])
            raise
        parked = registry.settle(found, known)
        limit = self._session.options.max_findings
        if limit is not None and registry.num_new >= limit:
            self._session.control.halt(registry.new_text())
        return parked

    def _leave_unresolved(self, left: Iterable[Found]) -> None:
        for found in left:
            self._session.registry.leave_unresolved(found)

    def _explain(self, found: Found, known: Known) -> list[Found]:
        if found.path is not None:
            self._session.store.discard(found.path)
        signature, path = known.signature, str(known.path)
        self._emit(FindingHit(index=found.index, signature=signature, path=path, hits=known.hits))
        return []

    def _save(self, found: Found) -> Found:
        with self._told_if_lost(found.case, found.verdict):
            return dataclasses.replace(
                found, path=self._session.store.save_found(found, self._world.info)
            )

    @contextlib.contextmanager
    def _told_if_lost(self, case: Case, verdict: Verdict) -> Iterator[None]:
        """Says the whole case where the disk cannot take it."""
        try:
            yield
        except InfraError as error:
            raw, signature = msgspec.Raw(codec.encode(case)), verdict.signature
            self._emit(SaveFailed(signature=signature, problem=str(error), case=raw))
            raise

    def _investigate(self, found: Found) -> Known | None:
        """Confirms, shrinks, saves and verifies; None for a finding that is not confirmed."""
        assert found.path is not None
        path, session = found.path, self._session
        signature = found.verdict.signature
        self._emit(
            PhaseChanged(phase="confirming", signature=signature, of=session.options.confirm)
        )
        judged = self._confirm_and_shrink(found.smaller or found.case, found.verdict, path)
        if judged.confirmation.absent and found.smaller is not None:
            judged = self._confirm_and_shrink(found.case, found.verdict, path)
        if judged.confirmation.absent:
            self._tell_flaky(found, judged, session.store.save_flaky(found, path, judged))
            return None
        if not judged.confirmation.reproduced:
            session.registry.leave_unresolved(found)
            return None
        if judged.cut_off:
            session.store.save_judged(path, judged)
            session.registry.leave_unresolved(found)
            return None
        same = session.store.same_as(judged, path)
        if same is None:
            self._tell_saved(found, judged, path, session.store.save_judged(path, judged))
        else:
            path = same
            replay = replay_command(path, session.store.entry(path))
            self._emit(finding_saved(found, judged, path, replay, None, duplicate=True))
        cause = cause_of(judged.case, found.case)
        internal = judged.verdict.internal
        return Known(
            signature,
            path,
            cause,
            confirmed=judged.confirmation,
            saved_before=found.before,
            internal=internal,
        )

    def _confirm_and_shrink(self, case: Case, expected: Verdict, path: Path) -> Judged:
        """Return what torch as it is and mended torch show, unless the campaign has no mends."""
        session = self._session
        runner = unknown_only(self._world, case, expected, session.mends)
        return confirm_and_shrink(
            self._world,
            case,
            expected,
            on_cpu=session.on_cpu,
            runner=runner,
            emit=self._emit,
            keep=functools.partial(session.store.save_smaller, path),
            runs=session.options.confirm,
            shrinking=session.options.shrink,
            seconds_left=session.control.seconds_left,
        )

    def _tell_flaky(self, found: Found, judged: Judged, path: Path) -> None:
        if not found.before:
            self._session.registry.count_flaky()
        seen, signature = judged.confirmation, found.verdict.signature
        others = tuple(seen.others)
        self._emit(
            FindingFlaky(signature=signature, runs=seen.runs, observed=others, path=str(path))
        )

    def _tell_saved(self, found: Found, judged: Judged, path: Path, entry: CorpusEntry) -> None:
        self._emit(PhaseChanged(phase="verifying", signature=entry.signature))
        script_fails = self._session.store.verify(path, entry)
        self._session.control.note_new()
        self._emit(finding_saved(found, judged, path, replay_command(path, entry), script_fails))


def finding_found(found: Found) -> FindingFound:
    """Return the event that a finding is saved as it was found."""
    return FindingFound(
        index=found.index,
        status=found.verdict.status,
        signature=found.verdict.signature,
        summary=_describe(found.verdict.findings[0]),
        path=str(found.path),
    )


def finding_saved(
    found: Found,
    judged: Judged,
    path: Path,
    replay: str,
    script_fails: bool | None,
    *,
    duplicate: bool = False,
) -> FindingSaved:
    """Return the event that a finding is confirmed, and saved as shrunk at ``path``."""
    return FindingSaved(
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


def _describe(finding: Finding) -> str:
    """One line: what was observed where, and what was expected."""
    where = f" of {finding.name}" if finding.name else ""
    when = f" at op {finding.op}" if finding.op >= 0 else ""
    return (
        f"{finding.engines}: {finding.oracle}{where}{when}: {finding.observed}, expected "
        f"{finding.expected}"
    )
