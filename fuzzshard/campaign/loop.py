"""The campaign: draw, judge, confirm, shrink and save, on several worlds at once, as a stream of events."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from fuzzshard import __version__
from fuzzshard.campaign.control import Control
from fuzzshard.campaign.cpu_ranks import cpu_ranks
from fuzzshard.campaign.drawing import drawn_cases
from fuzzshard.campaign.events import (
    CampaignFinished,
    CampaignStarted,
    CaseDetail,
    Continued,
    CorpusLoaded,
    Event,
)
from fuzzshard.campaign.keep import Keeper
from fuzzshard.campaign.known import Found, Registry
from fuzzshard.campaign.options import CampaignOptions, world_configs
from fuzzshard.campaign.prefetch import Prefetch
from fuzzshard.campaign.quarantine import Quarantine
from fuzzshard.campaign.restore import restore_counts, restore_findings, unfinished
from fuzzshard.campaign.resume import Plan, plan_session, start_of
from fuzzshard.campaign.saved import load_known
from fuzzshard.campaign.signals import signals_call
from fuzzshard.campaign.summary import summarize, verdict_code
from fuzzshard.campaign.tally import Tally
from fuzzshard.campaign.worker import Shared, Worker, WorldHandle
from fuzzshard.case.case import Case, EngineName
from fuzzshard.corpus.scripts import ScriptCheck, ScriptRender
from fuzzshard.corpus.store import FINDINGS_FOLDER
from fuzzshard.errors import EXIT_INFRA, EXIT_INTERRUPTED, FuzzshardError
from fuzzshard.guidance import guided
from fuzzshard.guidance.reached import Reached
from fuzzshard.journal.history import History
from fuzzshard.journal.lock import locked
from fuzzshard.journal.schema import JOURNAL_FILE, connect
from fuzzshard.journal.writer import JournalWriter
from fuzzshard.reproducer import check, scripts
from fuzzshard.world import World, resolve_device
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.spare import Spares


class CaseStream(Protocol):
    """Draws the cases of a campaign; equal arguments give equal cases."""

    def __call__(
        self, seed: int, /, *, world_size: int, engines: tuple[EngineName, ...], cuda: bool
    ) -> Iterator[Case]:
        """An endless stream, or a finite one."""


@dataclasses.dataclass(frozen=True)
class Tools:
    """What a campaign works with; tests put fakes in their place."""

    make_world: Callable[[WorldConfig, Spares], WorldHandle] = World
    cases: CaseStream = drawn_cases
    render: ScriptRender = scripts
    check: ScriptCheck = check


class _Interrupt:
    """Put into the event queue by the signal handler, to wake the coordinator."""


@dataclasses.dataclass(frozen=True)
class _Ended:
    """The last thing a world's thread puts into the event queue."""

    error: BaseException | None = None


def run_campaign(options: CampaignOptions, sink: Callable[[Event], None], *, tools: Tools = Tools()) -> int:
    """Runs a campaign and returns its exit code; ``sink`` gets every event, in the calling thread.

    The exit code is 0 for a clean campaign, 1 with at least one finding, 3 with inconclusive cases only,
    4 when the machine or the disk failed, 130 after Ctrl-C or SIGTERM. In each of these cases everything
    found is saved and the last event is :class:`CampaignFinished`. A second Ctrl-C ends it at once.
    A campaign in the same directory that did not end by itself is continued (:func:`plan_session`).
    Raises, before any event, :class:`fuzzshard.errors.UsageError` for options that this machine cannot serve,
    and other errors for a directory that is in use, cannot be written, or has a journal that cannot be read.
    """
    device, num_devices = resolve_device(options.device)
    configs = world_configs(options, device, num_devices)
    path = options.corpus / JOURNAL_FILE
    with locked(options.corpus), contextlib.closing(connect(path)) as connection:
        history = History(path, connection)
        plan = plan_session(history, options, configs[0])
        campaign = _Campaign(options, configs, sink, tools, plan)
        campaign.restore(history)
        campaign.journal = JournalWriter(path, connection, start_of(plan, options, configs))
        return campaign.run()


class _Campaign:
    """The coordinator. Worlds run in threads of their own and talk to it through one queue of events."""

    def __init__(
        self,
        options: CampaignOptions,
        configs: tuple[WorldConfig, ...],
        sink: Callable[[Event], None],
        tools: Tools,
        plan: Plan,
    ) -> None:
        self.options = options
        self.configs = configs
        self.config = configs[0]  # worlds differ in their devices only
        self.sink = sink
        self.tools = tools
        self.plan = plan
        self.journal: JournalWriter | None = None
        self.control = Control(
            options.max_time,
            stop_after_no_new=options.stop_after_no_new,
            before=plan.elapsed,
            quiet=plan.quiet,
        )
        self.tally = Tally()
        self.registry = Registry()
        self.quarantine = Quarantine(self.registry, plan.stream_seed, enabled=options.quarantine)
        self.reached = Reached()
        self.cases_before = 0
        self.unfinished: deque[Found] = deque()
        self.worlds: list[WorldHandle] = []
        self.spares = Spares()
        # A SimpleQueue, because a signal handler may put into it at any moment.
        self.queue: queue.SimpleQueue[Event | _Interrupt | _Ended] = queue.SimpleQueue()
        self.num_running = 0
        self.interrupted = False
        self.error: BaseException | None = None

    def restore(self, history: History) -> None:
        """What the corpus has already needs no shrinking again, nor what this campaign did before."""
        saved = load_known(
            self.options.corpus / FINDINGS_FOLDER, preload=self.config.preload, unconfirmed=False
        )
        self.registry.known.extend(saved.known)
        if (campaign := self.plan.campaign) is not None:
            self.cases_before = restore_counts(history, campaign, self.tally, self.reached)
            restore_findings(history, campaign, self.registry, self.quarantine)
            self.unfinished.extend(unfinished(history, campaign, self.options.corpus, self.config))
            for found in self.unfinished:
                self.registry.count_made(found)
            limit, made = self.options.max_findings, self.registry.num_new
            if limit is not None and made >= limit:
                self.control.reason = f"{made} distinct findings"

    def run(self) -> int:
        self._deliver_started()
        try:
            keeper = Keeper(self.options.corpus, self.options.preload, self.tools.render, self.tools.check)
        except FuzzshardError as error:
            self.error = error
            return self._deliver_finished()
        cases = self._draw()
        shared = Shared(
            cases=cases,
            control=self.control,
            tally=self.tally,
            registry=self.registry,
            keeper=keeper,
            quarantine=self.quarantine,
            confirm=self.options.confirm,
            reached=self.reached,
            unfinished=self.unfinished,
            shrinking=self.options.shrink,
            max_findings=self.options.max_findings,
            on_cpu=cpu_ranks(self.config, self._make_world, self.control),
        )
        try:
            with signals_call(self._on_signal):
                for number in range(len(self.configs)):
                    self.num_running += 1
                    thread = threading.Thread(
                        target=self._run_world,
                        args=(number, shared),
                        name=f"fuzzshard-world-{number}",
                        daemon=True,
                    )
                    thread.start()
                self._deliver_until_ended()
        except KeyboardInterrupt:
            self._interrupt()
        finally:
            self._abandon(cases)
            self.spares.close()
        for found in self.unfinished:
            self.registry.leave_unresolved(found)
        return self._deliver_finished()

    def _draw(self) -> Prefetch:
        """The cases of this session, as many as the campaign still has to run."""
        on_cuda = self.config.device == "cuda"
        stream = self.tools.cases(
            self.plan.stream_seed,
            world_size=self.config.size,
            engines=self.options.engines,
            cuda=on_cuda,
        )
        learner = guided(
            self.options.guidance,
            stream,
            self.plan.stream_seed,
            world_size=self.config.size,
            cuda=on_cuda,
            worlds=len(self.configs),
        )
        limit = self.options.max_cases
        left = None if limit is None else max(0, limit - self.cases_before)
        return Prefetch(learner, ahead=2 * len(self.configs) + 2, limit=left)

    def _make_world(self, config: WorldConfig) -> WorldHandle:
        return self.tools.make_world(config, self.spares)

    def _run_world(self, number: int, shared: Shared) -> None:
        """The thread of one world."""

        def emit(event: Event) -> None:
            stamped = msgspec.structs.replace(event, world=number, elapsed=self.control.elapsed())
            self.queue.put(stamped)

        error: BaseException | None = None
        try:
            world = self._make_world(self.configs[number])
            self.worlds.append(world)
            try:
                Worker(shared, world, emit).work()
            finally:
                world.close()
        except BaseException as raised:  # a thread has nobody above it; the coordinator decides
            error = raised
        self.queue.put(_Ended(error))

    def _deliver_until_ended(self) -> None:
        """Hands events to the sink until every world has ended, or has had its time to."""
        while self.num_running:
            try:
                item = self.queue.get(timeout=min(self.control.patience(), threading.TIMEOUT_MAX))
            except queue.Empty:
                return
            self._handle(item)

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
        """Writes an event down, and then tells it; what only the journal is for is told nobody else."""
        assert self.journal is not None
        try:
            self.journal.record(event)
        except FuzzshardError as error:
            self.error = self.error or error
            self.control.halt(str(error))
        if not isinstance(event, CaseDetail):
            self.sink(event)

    def _on_signal(self) -> None:
        """Called in the main thread, between any two of its instructions."""
        if self.interrupted:
            raise KeyboardInterrupt
        self._interrupt()

    def _interrupt(self) -> None:
        self.interrupted = True
        self.control.halt("interrupted")
        self.queue.put(_Interrupt())

    def _abandon(self, cases: Prefetch) -> None:
        """Ends what has not ended. Killing its ranks ends a world's run; its thread then saves the rest."""
        cases.close()
        self.control.abandon()
        if self.num_running:
            for pid in [pid for world in self.worlds for pid in world.pids]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._deliver_until_ended()

    def _deliver_started(self) -> None:
        options = self.options
        self._deliver(
            CampaignStarted(
                elapsed=self.plan.elapsed,
                version=__version__,
                seed=self.plan.seed,
                corpus=str(options.corpus),
                world_size=self.config.size,
                worlds=len(self.configs),
                device=self.config.device,
                devices=tuple(config.devices for config in self.configs if config.devices),
                engines=options.engines,
                preload=self.config.preload,
                max_cases=options.max_cases,
                max_time=options.max_time,
                max_findings=options.max_findings,
                stop_after_no_new=options.stop_after_no_new,
                continues=self._continued() if self.plan.earlier else None,
                note=self.plan.note,
            )
        )
        known = sum(known.saved_before for known in self.registry.all(gone=True))
        if known:
            self._deliver(CorpusLoaded(known=known, elapsed=self.control.elapsed()))

    def _continued(self) -> Continued:
        return Continued(
            sessions=len(self.plan.earlier),
            ended=self.plan.earlier[-1].reason or "killed",
            cases=self.cases_before,
            elapsed=self.plan.elapsed,
            counts=dict(self.tally.counts),
            findings=self.registry.num_new,
            unfinished=len(self.unfinished),
        )

    def _deliver_finished(self) -> int:
        """The summary; raises the error of a campaign that ended by a fault of its own."""
        assert self.journal is not None
        finished = self._summary()
        try:
            self.journal.record(finished)
        except FuzzshardError as error:
            self.error = self.error or error
            finished = self._summary()
        self.sink(finished)
        if self.error is not None and not isinstance(self.error, FuzzshardError):
            raise self.error
        return finished.exit_code

    def _summary(self) -> CampaignFinished:
        problem = "" if self.error is None else str(self.error) or repr(self.error)
        if self.error is not None and not isinstance(self.error, FuzzshardError):
            problem = f"internal error: {problem}"
        stopped = "interrupted" if self.interrupted else self.control.reason
        return summarize(
            self.tally,
            self.registry,
            self.quarantine,
            seed=self.plan.seed,
            elapsed=self.control.elapsed(),
            points_reached=len(self.reached.points),
            reason=problem or stopped or "all cases were run",
            exit_code=self._exit_code(),
            complete=self.error is None and not self.interrupted,
        )

    def _exit_code(self) -> int:
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.error is not None:
            return self.error.exit_code if isinstance(self.error, FuzzshardError) else EXIT_INFRA
        return verdict_code(self.tally, self.registry)
