"""A world: a set of live rank processes that run cases one after another."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time

from fuzzshard.analysis.needs import unfit_for
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.subject.subject import Subject, Training
from fuzzshard.verdict import Verdict
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.deadline import CUDA_CASES, CUDA_SECONDS, Deadline
from fuzzshard.world.merge import Outcome, merge
from fuzzshard.world.messages import CheckSubject, RunCase
from fuzzshard.world.processes import RankProcess
from fuzzshard.world.spare import Spares
from fuzzshard.world.start import Ranks, end_ranks, let_others_first, start_ranks
from fuzzshard.world.supervise import HARD_SECONDS, WORKING_SECONDS, ask_positions, supervise

RANK_CASES = 1000
"""After as many cases a world takes fresh ranks.

torch keeps things for ever that each case has of its own: what operations do to each shape and
layout (:func:`fuzzshard.training.housekeeping.clear_caches` drops that where mends change), what
Dynamo has compiled, heaps that fragment. A start costs less than one case in a thousand.
"""

QUIET_SECONDS = 20.0
"""How long a model of the user's own may wait for something without being taken to hang."""

SUBJECT_SECONDS = 600.0
"""How long it may take."""

STACK_SECONDS = 0.3
"""How long ranks have to write their stacks after SIGUSR1 and to say where they are."""

SLOW_STACK_SECONDS = 3.0
"""How long on a busy machine, where a rank has not begun to write or still writes."""


class World:
    """``config.size`` live ranks. Ranks beyond a case's mesh idle.

    Any exception, death or hang costs the ranks their lives; the next case finds fresh ones. Use a
    world from one thread at a time. Raises :class:`InfraError` when ranks cannot start.
    """

    def __init__(self, config: WorldConfig, spares: Spares | None = None) -> None:
        """Without ``spares`` fresh ranks start when they are needed."""
        self.config = config
        self.info: dict[str, str] = {}
        on_cuda = config.device == "cuda"
        self.deadline = Deadline(config.ranks_per_device, CUDA_SECONDS if on_cuda else 0.0)
        self._fresh_cases = CUDA_CASES if on_cuda else 1
        self._spares = spares
        self._starting = Ranks()
        self._ranks: list[RankProcess] = []
        self._ending: list[threading.Thread] = []
        self._served = 0

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The processes on this node of the ranks that live or start, in rank order; not of spare
        ones.
        """
        return self._starting.pids if not self._ranks else Ranks(self._ranks).pids

    def start(self) -> None:
        """Starts the ranks unless they live."""
        if not self._ranks:
            try:
                ranks = (
                    start_ranks(self.config, self._starting)
                    if self._spares is None
                    else self._spares.take(self.config)
                )
            finally:
                self._starting = Ranks()
            self._ranks, self.info = ranks.processes, ranks.info
            self._served = 0
            if self.config.nice:
                let_others_first(ranks.pids, self.config.nice)

    def restart(self) -> None:
        """Replaces the ranks by fresh ones."""
        ranks, self._ranks = self._ranks, []
        self._end(ranks)
        self.start()

    def close(self) -> None:
        """Kills the ranks."""
        ranks, self._ranks = self._ranks, []
        end_ranks(ranks)
        for thread in self._ending:
            thread.join()

    def _end(self, ranks: list[RankProcess]) -> None:
        """Kills ranks without waiting for their end: to give up a CUDA context takes a second."""
        if not ranks:
            return
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        thread = threading.Thread(
            target=end_ranks, args=(ranks,), name="fuzzshard-end", daemon=True
        )
        self._ending.append(thread)
        thread.start()

    def check(self, case: Case) -> None:
        """Raises :class:`InvalidCase` for a case that no rank should see.

        And :class:`UsageError` for one that needs CUDA, on ranks that have none, or the CPU.
        """
        validate(case, self.config.size)
        if (reason := unfit_for(case, self.config.device)) is not None:
            raise UsageError(
                reason, f"use --device {'cuda' if self.config.device == 'cpu' else 'cpu'}"
            )

    def run(
        self,
        case: Case,
        *,
        deadline: float | None = None,
        bare: bool = False,
        mends: tuple[str, ...] = (),
    ) -> Verdict:
        """Runs one case and judges it; ``deadline`` in seconds, by default calibrated from earlier
        cases.

        Raises what :meth:`check` raises. ``bare`` trains the engines and judges nothing. torch has
        ``mends`` meanwhile, and no others (:func:`fuzzshard.mending.mend.mends_for`).
        """
        self.check(case)
        if self._served >= RANK_CASES:
            self.restart()
        self.start()
        fresh = self._served < self._fresh_cases
        self._served += 1
        patience = HARD_SECONDS
        if deadline is None:
            compiles = case.compile is not None
            deadline = self.deadline.seconds(fresh, compiles=compiles)
            if compiles or self.config.device == "cpu":
                patience = WORKING_SECONDS
        began = time.monotonic()
        request = RunCase(case=case, bare=bare, mends=mends)
        outcome = supervise(self._ranks, request, began + deadline, patience)
        seconds = time.monotonic() - began
        if outcome.lost or outcome.waiting():
            self._bury(outcome)
        else:
            self.deadline.observe(seconds)
        return merge(case, outcome, seconds, deadline)

    def check_subject(
        self, subject: Subject, training: Training, *, patience: float = SUBJECT_SECONDS
    ) -> Outcome:
        """Checks a model of the user's own on all ranks; returns what they said.

        Ranks that use no processor time for a second after :data:`QUIET_SECONDS` hang, and so do
        those that have not ended after ``patience`` seconds.
        """
        self.start()
        self._served += 1
        outcome = supervise(
            self._ranks,
            CheckSubject(subject=subject, training=training, path=tuple(sys.path)),
            time.monotonic() + min(QUIET_SECONDS, patience),
            max(0.0, patience - QUIET_SECONDS),
        )
        if outcome.lost or outcome.waiting():
            self._bury(outcome)
        return outcome

    def _bury(self, outcome: Outcome) -> None:
        """Takes the stacks of the living, then replaces the world."""
        stuck = [p for p in self._ranks if p.rank in outcome.waiting()]
        sizes = {p.rank: len(p.node.printed(p.pid)) for p in stuck}
        for process in stuck:
            process.node.ask_stacks(process.pid)
        if stuck:
            until = time.monotonic() + STACK_SECONDS
            outcome.positions = ask_positions(stuck, until)
            time.sleep(max(0.0, until - time.monotonic()))
            _await_stacks(stuck, sizes)
        for process in self._ranks:
            if process.rank in sizes or process.rank in outcome.dead:
                text = process.node.printed(process.pid, sizes.get(process.rank, 0))
                outcome.stacks[process.rank] = text.decode(errors="replace")[-6000:]
        ranks, self._ranks = self._ranks, []
        for process in ranks:
            if process.rank in outcome.dead:
                outcome.exits[process.rank] = process.node.end_rank(process, kill=True)
                if process.node.is_lost:
                    outcome.lost_nodes[process.rank] = process.node.name
        self._end([process for process in ranks if process.rank not in outcome.dead])


def _await_stacks(stuck: list[RankProcess], before: dict[int, int]) -> None:
    """Waits until each rank's log is longer than ``before`` (bytes by rank) and grows no more."""
    until = time.monotonic() + SLOW_STACK_SECONDS
    seen: dict[int, int] = {}
    while time.monotonic() < until:
        sizes = {process.rank: len(process.node.printed(process.pid)) for process in stuck}
        if sizes == seen and all(sizes[rank] > before[rank] for rank in sizes):
            return
        seen = sizes
        time.sleep(STACK_SECONDS / 3)


class SharedWorld:
    """Keeps at most one world of ``config`` alive, and replaces it by a larger one where that is
    needed.

    Ranks beyond a case's mesh idle, so the largest world serves all cases. Nothing is started
    before the first :meth:`with_ranks`.
    """

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self._world: World | None = None

    def with_ranks(self, size: int) -> World:
        """Return a world of at least ``size`` ranks, which the caller does not close."""
        if self._world is None or self._world.config.size < size:
            self.close()
            self._world = World(dataclasses.replace(self.config, size=max(size, self.config.size)))
        return self._world

    def close(self) -> None:
        """Kills the ranks; the next use starts new ones."""
        if self._world is not None:
            self._world.close()
            self._world = None
