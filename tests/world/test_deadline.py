from __future__ import annotations

import os
import subprocess
import time

import pytest

from fuzzshard.world import deadline
from fuzzshard.world.deadline import FACTOR, FIRST_SECONDS, LEAST_SECONDS, MOST_SECONDS, Deadline, IdleWatch


def test_before_anything_is_known_the_deadline_is_generous() -> None:
    assert Deadline().seconds(fresh=True) == Deadline().seconds(fresh=False) == FIRST_SECONDS


@pytest.mark.parametrize(("took", "expected"), [(0.01, LEAST_SECONDS), (1.0, FACTOR), (100.0, MOST_SECONDS)])
def test_the_deadline_is_a_multiple_of_the_slowest_case_within_limits(took: float, expected: float) -> None:
    calibrated = Deadline()
    calibrated.observe(took)
    assert calibrated.seconds(fresh=False) == expected
    assert calibrated.seconds(fresh=True) == 2 * expected


def test_one_slow_case_is_forgotten_slowly() -> None:
    calibrated = Deadline()
    calibrated.observe(1.0)
    calibrated.observe(0.1)
    assert calibrated.seconds(fresh=False) == pytest.approx(0.98 * FACTOR)
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
        yield process
        process.kill()


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_nothing_is_known_before_the_window_closes(clock: Clock) -> None:
    assert IdleWatch([os.getpid()]).is_idle() is None


def test_ranks_that_use_no_processor_are_idle(clock: Clock, sleeper: subprocess.Popen) -> None:
    watch = IdleWatch([sleeper.pid])
    clock.now = deadline.IDLE_SECONDS
    assert watch.is_idle() is True


def test_one_rank_at_work_is_enough_not_to_be_idle(clock: Clock, sleeper: subprocess.Popen) -> None:
    watch = IdleWatch([sleeper.pid, os.getpid()])
    burn(3 * deadline.IDLE_CPU_SECONDS)
    clock.now = deadline.IDLE_SECONDS
    assert watch.is_idle() is False


def test_every_window_counts_for_itself(clock: Clock, sleeper: subprocess.Popen) -> None:
    watch = IdleWatch([os.getpid()])
    burn(3 * deadline.IDLE_CPU_SECONDS)
    clock.now = deadline.IDLE_SECONDS
    assert watch.is_idle() is False
    assert watch.is_idle() is None
    clock.now = 2 * deadline.IDLE_SECONDS
    assert watch.is_idle() is True


def test_a_dead_rank_uses_no_processor(clock: Clock, sleeper: subprocess.Popen) -> None:
    watch = IdleWatch([sleeper.pid])
    sleeper.kill()
    sleeper.wait()
    clock.now = deadline.IDLE_SECONDS
    assert watch.is_idle() is True
