"""Drawing cases ahead of the worlds, so that no world ever waits for a draw."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from fuzzshard.case.case import Case


class Prefetch:
    """Draws from ``stream`` in a thread of its own, at most ``ahead`` cases ahead, ``limit`` in
    all.

    The stream is only ever advanced in that thread. :meth:`take` may be called from any; every
    case is handed out once, in order, with its index in the stream.
    """

    def __init__(self, stream: Iterator[Case], *, ahead: int, limit: int | None = None) -> None:
        self._stream = stream
        self._ahead = ahead
        self._limit = limit
        self._ready: deque[tuple[int, Case]] = deque()
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
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """No more cases: drawing ends, and so does every wait in :meth:`take`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _draw(self) -> None:
        try:
            index = 0
            while index != self._limit and self._has_room():
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

    def _has_room(self) -> bool:
        """Wait until another case may be drawn; False once none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._ahead or self._closed)
            return not self._closed
