"""Garbage is collected when it is asked for, whatever other threads do meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from fuzzshard.training.survivors import collect_garbage


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


@pytest.mark.parametrize("late", [False, True])
def test_another_thread_that_collects_is_waited_for(late: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()
    gc.collect()
    Slow(begun, go_on)
    other = threading.Thread(target=gc.collect)
    other.start()
    assert begun.wait(10)
    cycle = weakref.ref(Cycle())  # the other thread has looked for garbage already
    assert gc.collect() == 0, "Python collects in two threads at once: nothing has to be waited for"
    assert cycle() is not None
    if late:
        threading.Timer(0.1, go_on.set).start()
    else:
        go_on.set()
    collect_garbage()
    assert cycle() is None
    other.join()
