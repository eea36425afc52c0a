"""Drawing cases in a process of its own: it would be half of what a case costs the coordinator.

``python -m fuzzshard.campaign.drawing`` reads what to draw as one JSON object and writes cases,
one a line, for as long as somebody reads them: a full pipe makes it wait, a closed one ends it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from typing import IO

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.errors import InfraError
from fuzzshard.guidance import Feedback, Learner
from fuzzshard.guidance.focus import around
from fuzzshard.strategies.steered import Steered, steered_stream

_case_decoder = msgspec.json.Decoder(Case)


class Request(msgspec.Struct, frozen=True):
    """The arguments of :func:`drawn_cases`."""

    seed: int
    world_size: int
    steered: Steered
    cuda: bool


def drawn_cases(seed: int, /, *, world_size: int, steered: Steered, cuda: bool) -> Iterator[Case]:
    """Cases as ``steered`` asks, of a stream that ``seed`` stands for, drawn by another process.

    Raises :class:`InfraError` where that process ends. It starts with the first case that is asked
    for.
    """
    request = msgspec.json.encode(Request(seed, world_size, steered, cuda))
    with (
        tempfile.TemporaryFile() as errors
    ):  # a pipe that nobody reads until the end would fill up
        process = subprocess.Popen(
            [sys.executable, "-m", "fuzzshard.campaign.drawing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.close()
            for line in process.stdout:
                if line.endswith(b"\n"):  # else the process ended while it wrote
                    yield _case_decoder.decode(line)
            code = process.wait()
            raise InfraError(
                f"drawing ended: {_last_line(errors) or f'exit code {code}'}", "run again"
            )
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    said = errors.read().decode(errors="replace").split("\n")
    return next(filter(None, reversed(said)), "")[:500]


def _draw(request: Request, out: IO[bytes]) -> None:
    encoder = msgspec.json.Encoder()
    seed, size, cuda = request.seed, request.world_size, request.cuda
    cases = steered_stream(seed, world_size=size, steered=request.steered, cuda=cuda)
    steering = request.steered.steering
    if steering.focus is not None:
        cases = around(steering.focus, cases, seed, steering=steering, world_size=size, cuda=cuda)
    for case in cases:
        out.write(encoder.encode(case) + b"\n")
        out.flush()


def main() -> None:
    """Draws until nobody reads any more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a whole process group may get them
        signal.signal(number, signal.SIG_IGN)  # and the coordinator answers
    try:
        _draw(msgspec.json.decode(sys.stdin.buffer.read(), type=Request), sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # the interpreter would flush what nobody reads


if __name__ == "__main__":
    main()


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
