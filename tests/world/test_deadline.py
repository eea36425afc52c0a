from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from fuzzshard.world import deadline
from fuzzshard.world.activity import ThreadActivity, activity
from fuzzshard.world.deadline import (
    COMPILING_SECONDS,
    FACTOR,
    FIRST_SECONDS,
    LEAST_SECONDS,
    MOST_SECONDS,
    Deadline,
    IdleWatch,
)


def test_before_anything_is_known_the_deadline_is_generous() -> None:
    assert Deadline().seconds(fresh=True) == Deadline().seconds(fresh=False) == FIRST_SECONDS


@pytest.mark.parametrize(
    ("took", "expected"), [(0.01, LEAST_SECONDS), (0.5, 0.5 * FACTOR), (100.0, MOST_SECONDS)]
)
def test_the_deadline_is_a_multiple_of_the_slowest_case_within_limits(
    took: float, expected: float
) -> None:
    calibrated = Deadline()
    calibrated.observe(took)
    assert calibrated.seconds(fresh=False) == expected
    assert calibrated.seconds(fresh=True) == min(2 * expected, MOST_SECONDS)


def test_ranks_that_share_devices_get_as_much_more_time() -> None:
    patient = Deadline(4)
    assert patient.seconds(fresh=True) == 4 * FIRST_SECONDS
    patient.observe(100.0)
    assert patient.seconds(fresh=False) == 4 * MOST_SECONDS


def test_fresh_ranks_that_warm_up_get_at_least_as_long() -> None:
    deadline = Deadline(warm_up=8.0)
    assert deadline.seconds(fresh=True) == 8.0
    deadline.observe(0.1)
    assert deadline.seconds(fresh=True) == 8.0
    assert deadline.seconds(fresh=False) == pytest.approx(0.1 * FACTOR)
    deadline.observe(0.2)
    assert deadline.seconds(fresh=True) == pytest.approx(0.4 * FACTOR)


def test_a_case_that_compiles_has_the_time_to_import_the_compiler() -> None:
    calibrated = Deadline()
    calibrated.observe(0.1)
    assert calibrated.seconds(fresh=True, compiles=True) == COMPILING_SECONDS


def test_one_slow_case_is_forgotten_slowly() -> None:
    calibrated = Deadline()
    calibrated.observe(0.5)
    calibrated.observe(0.1)
    assert calibrated.seconds(fresh=False) == pytest.approx(0.98 * 0.5 * FACTOR)
    for _ in range(1000):
        calibrated.observe(0.1)
    assert calibrated.seconds(fresh=False) == pytest.approx(0.1 * FACTOR)


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(deadline, "time", clock)
    return clock


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "1000"]) as process:
        wait_for(process.pid, "S")
        yield process
        process.kill()


def wait_for(pid: int, state: str) -> None:
    while activity(pid)[pid].state != state:
        pass


class Threads:
    """One rank with one thread, whose activity the kernel is said to tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = ThreadActivity(ran=1.0, waited=2.0, state="S")
        monkeypatch.setattr(deadline, "activity", lambda pid: {pid: self.now})

    def move(self, *, ran: float = 0.0, waited: float = 0.0, state: str = "S") -> None:
        self.now = ThreadActivity(self.now.ran + ran, self.now.waited + waited, state)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


NOBODY = 2**22 + 1  # above the largest pid that a kernel gives, proc_sys_kernel(5)


def look_for_a_window(watch: IdleWatch, clock: Clock, *moves: Callable[[], None]) -> None:
    """Looks once and then ten times more, until a window is whole; ``moves`` come between the
    looks.
    """
    watch.look()
    for number in range(10):
        if number < len(moves):
            moves[number]()
        clock.now += 1.05 * deadline.IDLE_SECONDS / 10
        watch.look()


def test_ranks_that_use_no_processor_are_idle_when_the_window_is_whole(
    clock: Clock, sleeper: subprocess.Popen
) -> None:
    watch = IdleWatch({0: sleeper.pid})
    assert not watch.is_idle()
    watch.look()
    clock.now = 0.9 * deadline.IDLE_SECONDS
    watch.look()
    assert not watch.is_idle()
    look_for_a_window(watch, clock)
    assert watch.is_idle()
    assert not watch.stopped()
    assert not watch.dead
    sleeper.kill()
    wait_for(sleeper.pid, "Z")
    for _ in range(2):
        watch.look()
        assert watch.dead == {0}, "before anybody has reaped it, and later"
        sleeper.wait()


def test_one_rank_at_work_is_enough_not_to_be_idle(
    clock: Clock, sleeper: subprocess.Popen
) -> None:
    def burn() -> None:
        until = time.process_time() + 6 * deadline.IDLE_CPU_SECONDS
        while time.process_time() < until:
            pass

    watch = IdleWatch({0: sleeper.pid, 1: os.getpid()})
    watch.look()
    look_for_a_window(watch, clock, burn)
    assert not watch.is_idle()


def test_a_thread_that_runs_now_and_then_is_idle_and_one_that_runs_more_is_not(
    clock: Clock, thread: Threads
) -> None:
    watch = IdleWatch({0: NOBODY})
    look_for_a_window(watch, clock, *[lambda: thread.move(ran=0.001, waited=0.01)] * 10)
    assert watch.is_idle()
    look_for_a_window(watch, clock, *[lambda: thread.move(ran=0.01)] * 10)
    assert not watch.is_idle()


@pytest.mark.parametrize(
    "move", [{"state": "R"}, {"waited": 0.1}, {"state": "D"}], ids=["starved", "waits", "disk"]
)
def test_a_thread_that_is_starved_or_waits_for_a_disk_is_not_idle(
    clock: Clock, thread: Threads, move: dict[str, Any]
) -> None:
    watch = IdleWatch({0: NOBODY})
    look_for_a_window(watch, clock, *[lambda: thread.move(**move)] * 10)
    assert not watch.is_idle()


def test_work_is_forgotten_after_a_window(clock: Clock, thread: Threads) -> None:
    watch = IdleWatch({0: NOBODY})
    watch.look()
    look_for_a_window(watch, clock, lambda: thread.move(ran=1.0))
    assert not watch.is_idle()
    look_for_a_window(watch, clock)
    assert watch.is_idle()


def test_who_was_away_for_long_begins_anew(clock: Clock, thread: Threads) -> None:
    watch = IdleWatch({0: NOBODY})
    look_for_a_window(watch, clock)
    clock.now += 2 * deadline.GAP_SECONDS
    watch.look()
    assert not watch.is_idle()


def test_what_a_rank_has_started_works_for_it(clock: Clock) -> None:
    spin = ["bash", "-c", "(while :; do :; done) & echo; wait"]
    with subprocess.Popen(spin, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        (child,) = psutil.Process(rank.pid).children()
        watch = IdleWatch({0: rank.pid})
        watch.look()
        ran = activity(child.pid)[child.pid].ran
        while activity(child.pid)[child.pid].ran < ran + 2 * deadline.IDLE_CPU_SECONDS:
            pass
        look_for_a_window(watch, clock)
        assert not watch.is_idle()
        child.kill()


def test_ranks_are_not_idle_while_one_of_them_was_stopped_for_a_part_of_the_window(
    clock: Clock, sleeper: subprocess.Popen
) -> None:
    """They may wait for that one: a whole window tells."""
    watch = IdleWatch({3: sleeper.pid})
    look_for_a_window(watch, clock)
    assert watch.is_idle()
    sleeper.send_signal(signal.SIGSTOP)
    wait_for(sleeper.pid, "T")
    watch.look()
    assert not watch.is_idle()
    look_for_a_window(watch, clock)
    assert watch.stopped() == {3}
