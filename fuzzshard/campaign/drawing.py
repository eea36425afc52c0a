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
from collections.abc import Iterator
from typing import IO

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.errors import InfraError
from fuzzshard.mutate.focus import around
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
