"""One world at work: takes cases and judges them, until there are no more or the campaign ends."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from fuzzshard.campaign.control import ControlledWorld
from fuzzshard.campaign.explain import judge_explained
from fuzzshard.campaign.follow_up import FollowUp
from fuzzshard.campaign.judge import Stopped, judge_clearly
from fuzzshard.campaign.known import Found
from fuzzshard.campaign.session import Session
from fuzzshard.campaign.tools import WorldHandle
from fuzzshard.case.case import Case
from fuzzshard.errors import InfraError
from fuzzshard.events import (
    CaseStarted,
    Event,
    InfraTrouble,
    KnownCause,
    PhaseChanged,
    WorldStarted,
)
from fuzzshard.verdict import Status, Verdict

START_ATTEMPTS = 3
"""How often ranks are started before a campaign that cannot begin gives up."""

STOCK_ONE_IN = 4
"""One case in so many runs on torch as it is; the others do with mends, where known bugs hide
nothing.
"""

ALIKE = 50
"""As many cases in a row run on the same torch: where mends change, ranks forget what operations
do to layouts, which is half of what a case costs.
"""

STOCK_TURN = STOCK_ONE_IN - 1
"""Which of so many of these rows is that on torch as it is: the last, as a campaign of a minute
should not spend it on explaining known bugs.
"""


class Worker:
    """Runs cases on one world, in one thread, until there are no more or the campaign ends."""

    def __init__(
        self, session: Session, world: WorldHandle, emit: Callable[[Event], None]
    ) -> None:
        self._session = session
        self._handle = world
        self._world = ControlledWorld(world, session.control)
        self._emit = emit
        self._follow_up = FollowUp(session, self._world, emit)

    def work(self) -> None:
        """Returns at the end of the campaign; raises :class:`InfraError` when it cannot go on."""
        try:
            self._emit(PhaseChanged(phase="starting"))
            self._start()
            self._emit(WorldStarted(info=dict(self._handle.info)))
            _each(self._session.unfinished, self._follow_up.finish)
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

    def _take_cases(self) -> None:
        self._emit(PhaseChanged(phase="running"))
        session = self._session
        while session.control.accepting() and (taken := session.cases.take()):
            _each(session.returned, self._follow_up.resolve)
            index, drawn = taken
            found, known = self._judge(index, drawn)
            verdict = found.verdict
            if verdict.status is Status.INFRA:
                path = str(session.store.save_unjudged(found.case))
                count = session.control.count_infra(verdict)
                self._emit(
                    InfraTrouble(index=index, message=verdict.message, in_a_row=count, path=path)
                )
                continue
            session.control.count_judged()
            if known:
                self._emit(KnownCause(index=index, signature=verdict.signature, causes=known))
            elif verdict.status.is_finding:
                self._follow_up.pursue(found)

    def _judge(self, index: int, drawn: Case) -> tuple[Found, tuple[str, ...]]:
        """Runs a case, counts it and tells it; whatever it shows that is not known is saved by
        then.

        With it come the causes by which mends know it.
        """
        session = self._session
        self._emit(CaseStarted(index=index))
        case, verdict, known = self._explained(index, drawn)
        found = Found(index, case, verdict)
        try:
            if verdict.status.is_finding and not known:
                found = self._follow_up.first_look(found)
        finally:
            judged = session.tally.add(index, case, verdict)
            self._emit(judged)
        if judged.new_features:
            session.control.note_new()
        return found, known

    def _explained(self, index: int, drawn: Case) -> tuple[Case, Verdict, tuple[str, ...]]:
        """The verdict of a case, the case that it is about, and the causes by which mends know it.

        A suspicion on mended torch counts where torch as it is fails, too; one that only mended
        torch has is a defect of a mend.
        """
        session = self._session
        if not session.mends:
            return *judge_clearly(self._world, drawn), ()
        case, explained = judge_explained(
            self._world,
            drawn,
            session.mends,
            on_mended=session.options.mends == "on" or index // ALIKE % STOCK_ONE_IN != STOCK_TURN,
            likely=session.registry.experience.likeliest,
            cut_off=self._follow_up.suspect,
            explaining=lambda signature, done: self._emit(
                PhaseChanged(phase="explaining", signature=signature, done=done)
            ),
        )
        if explained.stock.status.is_finding or explained.mended is not None:
            self._emit(PhaseChanged(phase="running"))
        if explained.known:
            session.registry.experience.count(explained.verdict.signature, explained.known)
        return case, explained.verdict, explained.known


def _each(waiting: deque[Found], go_on: Callable[[Found], None]) -> None:
    """Goes on with findings that wait for any world."""
    while waiting:
        with contextlib.suppress(IndexError):  # another world was faster
            go_on(waiting.popleft())
