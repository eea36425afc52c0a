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
from fuzzshard.strategies.steered import Steered, steered_stream

_case_decoder = msgspec.json.Decoder(Case)


class Request(msgspec.Struct, frozen=True):
    """The arguments of :func:`drawn_cases`."""

    seed: int
    world_size: int
    steered: Steered
    cuda: bool


def drawn_cases(seed: int, /, *, world_size: int, steered: Steered, cuda: bool) -> Iterator[Case]:
    """Yield cases as ``steered`` asks, of a stream that ``seed`` stands for, drawn by another
    process.

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
    cases = steered_stream(
        request.seed,
        world_size=request.world_size,
        steered=request.steered,
        cuda=request.cuda,
    )
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
        """Return the next case; None after the last one and after :meth:`close`. Raises what
        drawing raised.
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
        """End drawing, and every wait in :meth:`take`."""
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
