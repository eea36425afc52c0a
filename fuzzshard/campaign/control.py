"""When a campaign goes on, winds down, and stops: time, interrupts and a machine that fails."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from fuzzshard.campaign.judge import Stopped
from fuzzshard.case.case import Case
from fuzzshard.corpus.scripts import ScriptCheck
from fuzzshard.errors import FuzzshardError, check_infra_in_a_row
from fuzzshard.reproducer.shown import Ran
from fuzzshard.runner import Runner, StartWorld
from fuzzshard.verdict import Verdict
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.start import kill_ranks

OVERTIME_SECONDS = 2.0
"""After ``max_time``, for how long runs may still start, to confirm and to save what was found.

What is cut off comes first in the next session, so a limit can hold within ten seconds.
"""
GRACE_SECONDS = 3.0
"""After overtime, an interrupt or an error, how long worlds may take to end their run before they
are killed.
"""
SECONDS_BETWEEN_LOOKS = 0.2
"""How often a command without a campaign looks whether its time is up."""


class Control:
    """Read by every world between runs; written by the coordinator and by whoever reaches a limit.

    Time counts from the start of the campaign: its earlier sessions took ``before`` seconds, and
    in the last ``quiet`` of them nothing new came. ``reason`` is why no more cases are taken.
    ``halted``: no more runs either. ``interrupted``: somebody asked for that. ``abandoned``: the
    worlds were killed, so what their runs still return means nothing.
    """

    def __init__(
        self,
        max_time: float | None,
        *,
        stop_after_no_new: float | None = None,
        before: float = 0.0,
        quiet: float = 0.0,
    ) -> None:
        self._started = time.monotonic() - before
        self.reason = ""
        self.halted = False
        self.interrupted = False
        self.abandoned = False
        self.infra_in_a_row = 0
        self._halted_at = math.inf
        # A session that is continued in overtime has an overtime of its own.
        self._max_time = math.inf if max_time is None else max(max_time, before)
        self._max_quiet = math.inf if stop_after_no_new is None else stop_after_no_new
        self._last_new = before - quiet
        self._lock = threading.Lock()

    def elapsed(self) -> float:
        """Return seconds since the campaign started."""
        return time.monotonic() - self._started

    def seconds_left(self) -> float:
        """Return seconds until ``max_time``; negative in overtime."""
        return self._max_time - self.elapsed()

    def patience(self) -> float:
        """Return seconds that the worlds still have to end by themselves."""
        if self.halted:
            return max(0.0, self._halted_at + GRACE_SECONDS - self.elapsed())
        return max(0.0, self.seconds_left() + OVERTIME_SECONDS + GRACE_SECONDS)

    def accepting(self) -> bool:
        """Return whether another case may be taken from the stream."""
        if not self.reason and self.seconds_left() <= 0:
            self.reason = "time is up"
        if not self.reason and self.elapsed() - self._last_new >= self._max_quiet:
            self.reason = f"nothing new for {self._max_quiet:g} s"
        return not self.reason

    def note_new(self) -> None:
        """Note that a feature or a finding came that was not there before."""
        self._last_new = self.elapsed()

    def running(self) -> bool:
        """Return whether any run may start, be it to confirm or to shrink."""
        return not self.halted and self.seconds_left() > -OVERTIME_SECONDS

    def halt(self, reason: str) -> None:
        """Ends every world after the run it is in. Takes no lock: signal handlers call it."""
        if not self.halted:
            self.reason = self.reason or reason
            self._halted_at = self.elapsed()
            self.halted = True

    def halt_or_raise(self) -> None:
        """Handle a signal: the first one ends every world after its run, the second one at
        once.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.halt("interrupted")

    def abandon(self) -> None:
        """Give up all runs; threads that were stuck in one get a last grace."""
        self.halted = self.abandoned = True
        self._halted_at = self.elapsed()

    def count_infra(self, verdict: Verdict) -> int:
        """Counts one more case without a verdict; raises
        :class:`fuzzshard.errors.InfraError` for too many in a row.
        """
        with self._lock:
            self.infra_in_a_row += 1
            count = self.infra_in_a_row
        check_infra_in_a_row(count, verdict.message)
        return count

    def count_judged(self) -> None:
        """Note that a case has a verdict: the machine works."""
        self.infra_in_a_row = 0


@contextlib.contextmanager
def ended_in_time(control: Control, pids: Callable[[], Iterable[int]]) -> Iterator[None]:
    """Kills the ranks of the block, whose ``pids`` are asked for, when :meth:`Control.patience` is
    over, and those that start later.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(min(control.patience(), SECONDS_BETWEEN_LOOKS)):
            if control.patience() <= 0:
                control.abandon()
                break
        while not done.wait(SECONDS_BETWEEN_LOOKS):
            kill_ranks(pids)

    watching = threading.Thread(target=watch, name="fuzzshard-limit", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


class ControlledWorld:
    """A world that raises :class:`Stopped` in place of runs that its campaign no longer wants."""

    def __init__(self, world: Runner, control: Control) -> None:
        self._world = world
        self._control = control

    @property
    def info(self) -> Mapping[str, str]:
        """As :attr:`Runner.info`."""
        return self._world.info

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        """Do as :meth:`Runner.run` does."""
        with self._while_wanted():
            return self._world.run(case, deadline=deadline, mends=mends)

    def restart(self) -> None:
        """Do as :meth:`Runner.restart` does."""
        with self._while_wanted():
            self._world.restart()

    @contextlib.contextmanager
    def _while_wanted(self) -> Iterator[None]:
        """Raises :class:`Stopped` before a run that may not start, and in place of any result once
        the ranks were killed.
        """
        if not self._control.running():
            raise Stopped
        try:
            yield
        except FuzzshardError:
            if not self._control.abandoned:
                raise
        if self._control.abandoned:
            raise Stopped


class ControlledCheck:
    """Runs scripts, and raises :class:`Stopped` in place of runs that the campaign no longer
    wants.
    """

    def __init__(self, check: ScriptCheck, control: Control) -> None:
        self._check = check
        self._control = control

    def __call__(
        self,
        path: Path,
        num_ranks: int,
        *,
        preload: tuple[Path, ...] = (),
        wanted: Callable[[], bool] = lambda: True,
    ) -> Ran:
        """As :class:`fuzzshard.corpus.scripts.ScriptCheck`."""
        control = self._control
        if not control.running():
            raise Stopped
        outcome = self._check(
            path, num_ranks, preload=preload, wanted=lambda: wanted() and not control.abandoned
        )
        if self._control.abandoned:
            raise Stopped
        return outcome


def cpu_ranks(
    config: WorldConfig,
    make_world: Callable[[WorldConfig], AbstractContextManager[Runner]],
    control: Control,
) -> StartWorld | None:
    """Starts a world like that of ``config``, but on the CPU; None where it is there already."""
    if config.device == "cpu":
        return None

    @contextlib.contextmanager
    def start(size: int) -> Iterator[Runner]:
        on_cpu = dataclasses.replace(config, device="cpu", size=size, devices=())
        with make_world(on_cpu) as world:
            yield ControlledWorld(world, control)

    return start


@contextlib.contextmanager
def signals_call(handler: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C, and SIGTERM, by which schedulers preempt, call ``handler``.

    An exception raised at any instruction could cut an event in two. Signals reach the main thread
    only; a campaign in another thread leaves them alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        handler()

    previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, old in previous.items():
            signal.signal(s, old)
