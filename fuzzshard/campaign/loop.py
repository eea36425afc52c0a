"""The campaign: draw, judge, confirm, shrink and save, on several worlds at once, as a stream of
events.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from fuzzshard.campaign.control import signals_call
from fuzzshard.campaign.exchange import Exchange
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.resume import plan_session, start_of
from fuzzshard.campaign.session import Session
from fuzzshard.campaign.tools import TOOLS, Tools, WorldHandle
from fuzzshard.campaign.worker import Follower, Worker
from fuzzshard.errors import EXIT_INFRA, EXIT_INTERRUPTED, FuzzshardError
from fuzzshard.events import (
    CampaignFinished,
    CaseJudged,
    Event,
    Finishing,
    NodeChanged,
    PhaseChanged,
)
from fuzzshard.journal.history import History
from fuzzshard.journal.lock import locked
from fuzzshard.journal.schema import JOURNAL_FILE, connect
from fuzzshard.journal.writer import JournalWriter
from fuzzshard.strategies.steered import reach
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.nodes import telling
from fuzzshard.world.spare import Spares
from fuzzshard.world.start import kill_ranks

E = TypeVar("E", bound=Event)


NICE = 10
"""How far ranks that follow findings up let those go first that run fresh cases: where both want a
core, they get a tenth of it (sched(7)).
"""


class _Interrupt:
    """Put into the event queue by the signal handler, to wake the coordinator."""


@dataclasses.dataclass(frozen=True)
class _Ended:
    """The last thing a world's thread puts into the event queue."""

    error: BaseException | None = None


def run_campaign(
    options: CampaignOptions, sink: Callable[[Event], None], *, tools: Tools = TOOLS
) -> int:
    """Runs a campaign and returns its exit code; ``sink`` gets every event, in the calling thread.

    The exit code is 0 for a campaign without findings but those that the corpus had when it began,
    1 with at least one of its own, be it of an earlier session or not confirmed yet, 3 with
    inconclusive cases only, 4 when the machine or the disk failed, 130 after Ctrl-C or SIGTERM. In
    each of these cases everything found is saved and the last event is :class:`CampaignFinished`.
    A second Ctrl-C ends it at once. A campaign in the same directory that did not end by itself is
    continued (:func:`plan_session`). Raises, before any event,
    :class:`fuzzshard.errors.UsageError` for options that this machine cannot serve, and other
    errors for a directory that is in use, cannot be written, or has a journal that cannot be read.
    """
    configs = options.world_configs()
    path = options.corpus / JOURNAL_FILE
    with locked(options.corpus), contextlib.closing(connect(path)) as connection:
        history = History(path, connection)
        plan = plan_session(history, options, configs[0])
        steered = reach(
            options.steering, plan.seed, world_size=configs[0].size, cuda=options.kind == "cuda"
        )
        session = Session(options, configs, plan, steered)
        session.restore(history)
        journal = JournalWriter(path, connection, start_of(plan, options, configs))
        return _Coordinator(session, journal, sink, tools).run()


def _stamped(event: E) -> E:
    return msgspec.structs.replace(event, time=time.time())


class _Coordinator:
    """Starts the worlds, in threads of their own, which talk to it through one queue of events."""

    def __init__(
        self, session: Session, journal: JournalWriter, sink: Callable[[Event], None], tools: Tools
    ) -> None:
        self.session = session
        self.control = session.control
        self.journal = journal
        self.sink = sink
        self.tools = tools
        self.worlds: list[WorldHandle] = []
        self.spares = Spares()
        # A SimpleQueue, because a signal handler may put into it at any moment.
        self.queue: queue.SimpleQueue[Event | _Interrupt | _Ended] = queue.SimpleQueue()
        self.num_running = 0
        self.doing: dict[int, PhaseChanged] = {}
        self.finishing = False
        self.error: BaseException | None = None

    def run(self) -> int:
        limit_arenas()
        for event in self.session.started():
            self._deliver(event)
        try:
            self.session.equip(self.tools, self._world)
        except FuzzshardError as error:
            self.error = error
            return self._deliver_finished()
        exchange = self._exchange()
        try:
            with signals_call(self._on_signal), telling(self._on_node):
                if exchange is not None:
                    exchange.start()
                configs = self.session.configs
                following = [
                    dataclasses.replace(config, nice=NICE)
                    for config in configs[: self.session.num_followers]
                ]
                for number, config in enumerate((*configs, *following)):
                    self.num_running += 1
                    works = Worker if number < len(configs) else Follower
                    thread = threading.Thread(
                        target=self._run_world,
                        args=(number, config, works),
                        name=f"fuzzshard-world-{number}",
                        daemon=True,
                    )
                    thread.start()
                self._deliver_until_ended()
        except KeyboardInterrupt:
            self._interrupt()
        finally:
            self._abandon()
            self.spares.close()
            if exchange is not None:
                with signals_call(lambda: None):  # it waits for some seconds only
                    exchange.close(
                        "interrupted" if self.control.interrupted else self.control.reason
                    )
        if exchange is not None:
            while not self.queue.empty():
                self._handle(self.queue.get())
        self.session.leave_unfinished()
        code = self._deliver_finished()
        if exchange is not None:
            exchange.tell_last_figures()
        return code

    def _exchange(self) -> Exchange | None:
        """Return what talks with campaigns on other nodes."""
        session = self.session
        if session.options.exchange is None:
            return None
        return Exchange(
            session.options.exchange,
            registry=session.registry,
            store=session.store,
            control=self.control,
            backlog=session.backlog,
            render=self.tools.render,
            emit=self.queue.put,
        )

    @contextlib.contextmanager
    def _world(self, config: WorldConfig) -> Iterator[WorldHandle]:
        """A world whose ranks :meth:`_abandon` knows for as long as they may live."""
        world = self.tools.make_world(config, self.spares)
        self.worlds.append(world)
        try:
            yield world
        finally:
            world.close()
            self.worlds.remove(world)

    def _run_world(self, number: int, config: WorldConfig, works: type[Worker | Follower]) -> None:
        """The thread of one world."""

        def emit(event: Event) -> None:
            stamped = msgspec.structs.replace(event, world=number, elapsed=self.control.elapsed())
            self.queue.put(stamped)

        error: BaseException | None = None
        try:
            with self._world(config) as world:
                works(self.session, world, emit).work()
        except BaseException as raised:  # a thread has nobody above it; the coordinator decides
            error = raised
        self.queue.put(_Ended(error))

    def _deliver_until_ended(self) -> None:
        """Hands events to the sink until every world has ended, or has had its time to."""
        while self.num_running:
            self._say_what_still_runs()
            left = self.control.patience()
            wait = left if self.finishing else min(left, max(0.0, self.control.seconds_left()))
            try:
                item = self.queue.get(timeout=min(wait, threading.TIMEOUT_MAX))
            except queue.Empty:
                if wait == left:
                    return
            else:
                self._handle(item)

    def _say_what_still_runs(self) -> None:
        """Once, when the time is up or somebody interrupts."""
        over = self.control.seconds_left() <= 0 and not self.control.accepting()
        if self.finishing or not (self.control.interrupted or over):
            return
        self.finishing = True
        busy = (self.doing[world] for world in sorted(self.doing))
        doing = tuple(phase.text for phase in busy if phase.phase != "waiting")
        elapsed = self.control.elapsed()
        self._deliver(Finishing(reason=self.control.reason, doing=doing, elapsed=elapsed))

    def _handle(self, item: Event | _Interrupt | _Ended) -> None:
        if isinstance(item, Event):
            self._deliver(item)
        elif isinstance(item, _Ended):
            self.num_running -= 1
            if isinstance(item.error, KeyboardInterrupt):
                self._interrupt()
            elif item.error is not None and not self.control.abandoned:
                self.error = self.error or item.error
                self.control.halt(str(item.error))

    def _deliver(self, event: Event) -> None:
        """Writes an event down, and then tells it."""
        event = _stamped(event)
        if isinstance(event, PhaseChanged):
            self.doing[event.world] = event
            if event.phase == "stopped":
                del self.doing[event.world]
        try:
            self.journal.record(event)
        except FuzzshardError as error:
            self.error = self.error or error
            self.control.halt(str(error))
        self.sink(event)
        if isinstance(event, CaseJudged) and event.index % CASES_BETWEEN_TRIMS == 0:
            trim_heap()

    def _on_signal(self) -> None:
        """Called in the main thread, between any two of its instructions."""
        self.control.halt_or_raise()
        self.queue.put(_Interrupt())

    def _on_node(self, name: str, is_lost: bool) -> None:
        elapsed = self.control.elapsed()
        self.queue.put(NodeChanged(node=name, is_lost=is_lost, elapsed=elapsed))

    def _interrupt(self) -> None:
        self.control.interrupted = True
        self.control.halt("interrupted")

    def _abandon(self) -> None:
        """Ends what has not ended. Killing its ranks ends a world's run; its thread then saves the
        rest.

        Scripts that run end by themselves: they ask whether they are wanted.
        """
        self.session.cases.close()
        self.control.abandon()
        if self.num_running:
            kill_ranks(self._pids)
            self._deliver_until_ended()

    def _pids(self) -> list[int]:
        living = [pid for world in tuple(self.worlds) for pid in world.pids]
        return [*living, *self.spares.starting]

    def _deliver_finished(self) -> int:
        """Return the summary; raises the error of a campaign that ended by a fault of its own."""
        finished = _stamped(self._summary())
        try:
            self.journal.record(finished)
        except FuzzshardError as error:
            self.error = self.error or error
            finished = _stamped(self._summary())
        self.sink(finished)
        if self.error is not None and not isinstance(self.error, FuzzshardError):
            raise self.error
        return finished.exit_code

    def _summary(self) -> CampaignFinished:
        problem = "" if self.error is None else str(self.error) or repr(self.error)
        if self.error is not None and not isinstance(self.error, FuzzshardError):
            problem = f"internal error: {problem}"
        stopped = "interrupted" if self.control.interrupted else self.control.reason
        return self.session.finished(
            problem or stopped or "all cases were run",
            self._exit_code(),
            complete=self.error is None and not self.control.interrupted,
        )

    def _exit_code(self) -> int:
        if self.control.interrupted:
            return EXIT_INTERRUPTED
        if self.error is not None:
            return self.error.exit_code if isinstance(self.error, FuzzshardError) else EXIT_INFRA
        return self.session.verdict_code()


_M_ARENA_MAX = -8  # malloc.h of glibc
_NUM_ARENAS = 2

CASES_BETWEEN_TRIMS = 100


def limit_arenas() -> None:
    """Keeps glibc from giving each thread a heap of its own, eight for each core, which never
    shrinks.

    Does nothing with another C library. See mallopt(3), M_ARENA_MAX.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _NUM_ARENAS)


def trim_heap() -> None:
    """Gives free pages back to the system, with glibc. See malloc_trim(3)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
