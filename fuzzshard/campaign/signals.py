"""Ctrl-C and SIGTERM as a call, for those who must not be cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def signals_call(handler: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, and the SIGTERM by which schedulers preempt, call ``handler`` in place of raising.

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
