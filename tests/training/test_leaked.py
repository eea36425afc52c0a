"""Garbage is collected when it is asked for, whatever other threads do meanwhile."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
import torch

from fuzzshard.training import leaked
from fuzzshard.training.leaked import (
    PATIENCE_SECONDS,
    LeakWatch,
    collect_garbage,
    wait_until_freed,
)


class Slow:
    """Garbage of a cycle whose end takes until it is let go."""

    def __init__(self, begun: threading.Event, go_on: threading.Event) -> None:
        self.itself = self
        self.begun, self.go_on = begun, go_on

    def __del__(self) -> None:
        self.begun.set()
        self.go_on.wait(10)


class Cycle:
    """Garbage as soon as its last name is gone, freed by a collection only."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_another_thread_that_collects_is_waited_for(late: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()
    gc.collect()
    Slow(begun, go_on)
    other = threading.Thread(target=gc.collect)
    other.start()
    assert begun.wait(10)
    cycle = weakref.ref(Cycle())  # the other thread has looked for garbage already
    assert gc.collect() == 0, (
        "Python collects in two threads at once: nothing has to be waited for"
    )
    assert cycle() is not None
    if late:
        threading.Timer(0.1, go_on.set).start()
    else:
        go_on.set()
    collect_garbage()
    assert cycle() is None
    other.join()


def _raise(_gradient: torch.Tensor) -> None:
    raise InterruptedError


def test_what_a_backward_that_raised_has_left_in_its_queue_is_let_go_of() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    once, again = (weight @ torch.ones(2) for _ in range(2))
    for output in (once, again):
        output.register_hook(_raise)
    with pytest.raises(InterruptedError):
        (once + again).sum().backward()
    left = weakref.ref(weight)
    del weight, once, again, output
    while gc.collect():
        pass
    assert left() is not None, "autograd drops the queue: no backward has to follow"
    with torch.no_grad():
        collect_garbage()
    assert left() is None


class Held(LeakWatch):
    """Something that is gone after it was asked for some times."""

    def __init__(self, times: int) -> None:
        self._answers: Iterator[tuple[str, ...]] = itertools.repeat(("module a",), times)

    def names(self) -> tuple[str, ...]:
        return next(self._answers, ())


def test_what_a_thread_lets_go_of_a_little_later_is_no_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaked, "PATIENCE_SECONDS", 60.0)
    held = Held(3)
    wait_until_freed([Held(0), held])
    assert held.names() == ()


def test_what_stays_is_waited_for_no_longer_than_patience_lasts() -> None:
    began, held = time.monotonic(), Held(10**9)
    wait_until_freed([held])
    assert held.names() == ("module a",)
    assert PATIENCE_SECONDS <= time.monotonic() - began < PATIENCE_SECONDS + 10
