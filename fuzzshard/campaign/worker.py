"""The threads of a campaign: worlds that run fresh cases, and others that follow up what these
find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fuzzshard.campaign.backlog import Suspicion
from fuzzshard.campaign.control import ControlledWorld
from fuzzshard.campaign.explain import OnMends
from fuzzshard.campaign.follow_up import FollowUp
from fuzzshard.campaign.judge import Stopped, judge_clearly
from fuzzshard.campaign.known import Found
from fuzzshard.campaign.session import Session
from fuzzshard.campaign.tools import WorldHandle
from fuzzshard.errors import InfraError
from fuzzshard.events import CaseStarted, Event, PhaseChanged, WorldStarted

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
    """Runs cases on one world, in one thread, until there are no more or the campaign ends.

    What shows a finding goes to the backlog. There :class:`Follower` takes it from; and workers do
    where it is full, and at the end.
    """

    def __init__(
        self, session: Session, world: WorldHandle, emit: Callable[[Event], None]
    ) -> None:
        self._session = session
        self._handle = world
        self._world = ControlledWorld(world, session.control)
        self._emit = emit
        self._follow_up = FollowUp(session, self._world, emit)
        self._row = -1
        self._on_mended = True

    def work(self) -> None:
        """Returns at the end of the campaign; raises :class:`InfraError` when it cannot go on."""
        try:
            try:
                start_ranks(self._handle, self._world, self._emit)
                self._take_cases()
            finally:
                self._session.backlog.leave()
            while follow_next(self._session, self._follow_up, wait=False):
                pass
        except Stopped:
            pass
        finally:
            self._emit(PhaseChanged(phase="stopped"))

    def _take_cases(self) -> None:
        session = self._session
        self._emit(PhaseChanged(phase="running"))
        while session.control.accepting():
            if session.backlog.is_full and follow_next(session, self._follow_up, wait=False):
                self._emit(PhaseChanged(phase="running"))
                continue
            session.wait_for_last_finding()
            if (taken := session.cases.take()) is None:
                return
            index, drawn = taken
            self._emit(CaseStarted(index=index))
            on_mended = self._runs_on_mended(index)
            world = OnMends(self._world, session.mends) if on_mended else self._world
            case, verdict = judge_clearly(world, drawn)
            if verdict.status.is_finding:
                path = self._follow_up.save_suspect(index, case, verdict)
                session.backlog.put(Suspicion(index, case, verdict, on_mended, path))
            else:
                self._follow_up.conclude(Found(index, case, verdict))

    def _runs_on_mended(self, index: int) -> bool:
        """Return whether this case first runs on mended torch, as all of its row do.

        A suspicion there counts where torch as it is fails, too; one that only mended torch has is
        a defect of a mend.
        """
        session = self._session
        if index // ALIKE != self._row:
            self._row = index // ALIKE
            is_turn = session.options.mends != "on" and self._row % STOCK_ONE_IN == STOCK_TURN
            self._on_mended = bool(session.mends) and (not is_turn or session.backlog.is_long)
        return self._on_mended


class Follower:
    """Follows findings up on a world of its own, in one thread. Its ranks start with the first
    finding, and let those that run fresh cases go first.
    """

    def __init__(
        self, session: Session, world: WorldHandle, emit: Callable[[Event], None]
    ) -> None:
        self._session = session
        self._handle = world
        self._world = ControlledWorld(world, session.control)
        self._emit = emit

    def work(self) -> None:
        """Returns at the end of the campaign, and where there is no room for another world: then
        workers do all.
        """
        backlog = self._session.backlog
        if not backlog.wait_for_any():
            return
        follow_up, is_up = FollowUp(self._session, self._world, self._emit), False
        try:
            with contextlib.suppress(InfraError):
                start_ranks(self._handle, self._world, self._emit)
                is_up = True
            while is_up and follow_next(self._session, follow_up, wait=True):
                self._emit(PhaseChanged(phase="waiting"))
        except Stopped:
            pass
        finally:
            backlog.leave(follower=True)
            self._emit(PhaseChanged(phase="stopped"))


def start_ranks(
    handle: WorldHandle, world: ControlledWorld, emit: Callable[[Event], None]
) -> None:
    """Starts the ranks; again if they do not come up, for one of them may have been killed."""
    emit(PhaseChanged(phase="starting"))
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            world.restart()
            break
        except InfraError:
            if attempt == START_ATTEMPTS:
                raise
    emit(WorldStarted(info=dict(handle.info)))


def follow_next(session: Session, follow_up: FollowUp, *, wait: bool) -> bool:
    """Follows up what has waited longest; whether there was anything (:meth:`Backlog.take`)."""
    if (item := session.backlog.take(wait=wait)) is None:
        return False
    try:
        if isinstance(item, Suspicion):
            follow_up.explain(item)
        else:
            follow_up.finish(item)
    finally:
        session.backlog.done()
    return True
