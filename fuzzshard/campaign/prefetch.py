"""Drawing cases ahead of the worlds, so that no world ever waits for a draw."""

from __future__ import annotations

import threading
from collections import deque

from fuzzshard.case.case import Case
from fuzzshard.guidance import Feedback, Learner


class Prefetch:
    """Draws from ``stream`` in a thread of its own, at most ``ahead`` cases ahead, ``limit`` in
    all.

    The stream is only ever advanced, and told what became of its cases, in that thread.
    :meth:`take` and
    :meth:`tell` may be called from any thread; every case is handed out once, in order, with its
    index in the stream. Each case that is taken orders another one, which is drawn knowing what
    was told by then: so with one world the stream depends on no timing.
    """

    def __init__(self, stream: Learner, *, ahead: int, limit: int | None = None) -> None:
        self._stream = stream
        self._limit = limit
        self._ready: deque[tuple[int, Case]] = deque()
        self._told: list[Feedback] = []
        self._orders: deque[list[Feedback]] = deque([] for _ in range(ahead))
        self._error: BaseException | None = None
        self._closed = False
        self._exhausted = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._draw, name="fuzzshard-draw", daemon=True)
        self._thread.start()

    def take(self) -> tuple[int, Case] | None:
        """The next case; None after the last one and after :meth:`close`. Raises what drawing
        raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._exhausted or self._closed)
            if self._closed:
                return None
            if self._ready:
                self._orders.append(self._told)
                self._told = []
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None:
                raise self._error
            return None

    def tell(self, feedback: Feedback) -> None:
        """What became of a case that was taken."""
        with self._changed:
            self._told.append(feedback)

    def close(self) -> None:
        """No more cases: drawing ends, and so does every wait in :meth:`take`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _draw(self) -> None:
        try:
            index = 0
            while index != self._limit and (told := self._next_order()) is not None:
                for feedback in told:
                    self._stream.learn(feedback)
                case = next(self._stream, None)
                if case is None:
                    return
                with self._changed:
                    self._ready.append((index, case))
                    self._changed.notify_all()
                index += 1
        except BaseException as error:  # handed to whoever takes the next case
            self._error = error
        finally:
            with self._changed:
                self._exhausted = True
                self._changed.notify_all()

    def _next_order(self) -> list[Feedback] | None:
        """What was told before a case was taken in whose place another one is to be drawn."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._closed)
            return None if self._closed else self._orders.popleft()
