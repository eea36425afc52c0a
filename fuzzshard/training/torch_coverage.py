"""Which lines and branches of torch's own Python the engines reach on this rank.

A *point* is a pair of lines of one file: an arc that was taken, as in the coverage library; 0 in
the first place stands for the line itself. On Python 3.12 and newer ``sys.monitoring`` calls back
once for each point and is then silent, so that a case costs next to nothing. Before that there is
the coverage library's tracer, which makes every Python call in the process slower: not every case
need be traced with it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from typing_extensions import override

TRACED = (
    "distributed/fsdp/",
    "distributed/_composable/",
    "distributed/tensor/",
    "distributed/algorithms/_checkpoint/",
    "nn/parallel/distributed.py",
)
"""FSDP, ``replicate``, tensor parallelism, checkpoint wrappers and DDP, in the package
``torch``.
"""
ROOT = str(Path(torch.__file__).parent) + "/"

Arc = tuple[int, int]


class Tracer:
    """Hears of torch's lines and branches while it is on; this one hears nothing."""

    def begin(self) -> None:
        """A new case begins."""

    def start(self) -> None:
        """Listens from now on."""

    def stop(self) -> None:
        """Listens no more."""

    def take(self) -> dict[str, list[Arc]]:
        """What was reached since the last time, by path below ``torch``; it may name points
        again.
        """
        return {}


_tracer = Tracer()
_sent: dict[str, set[Arc]] = {}
"""What this rank has said already."""


def install(*, every: int) -> None:
    """Traces engine runs from now on; with the coverage library those of one case in ``every``."""
    global _tracer
    _tracer = Monitoring() if sys.version_info >= (3, 12) else CoverageLibrary(every)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Around the run of an engine; does nothing unless a tracer is installed."""
    _tracer.start()
    try:
        yield
    finally:
        _tracer.stop()


def begin_case() -> None:
    """Called once for each case that is sent to this rank, on all ranks of a world."""
    _tracer.begin()


def new_points() -> dict[str, list[Arc]]:
    """What was reached for the first time on this rank, by path below ``torch``."""
    found: dict[str, list[Arc]] = {}
    for path, arcs in _tracer.take().items():
        known = _sent.setdefault(path, set())
        if new := sorted(set(arcs) - known):
            known.update(new)
            found[path] = new
    return found


def _path(filename: str) -> str | None:
    """The path below ``torch`` of a file that is traced."""
    path = filename.removeprefix(ROOT)
    return path if path != filename and path.startswith(TRACED) else None


class CoverageLibrary(Tracer):
    """The C tracer of the coverage library. Threads that C++ starts, as autograd does on CUDA,
    escape it.
    """

    def __init__(self, every: int) -> None:
        from coverage import Coverage  # WorldConfig has checked that it is there

        include = [f"{ROOT}{path}*" if path.endswith("/") else ROOT + path for path in TRACED]
        self._coverage = Coverage(data_file=None, branch=True, include=include, config_file=False)
        self._every = every
        self._number = -1
        self._heard = False

    @override
    def begin(self) -> None:
        self._number += 1

    @property
    def _due(self) -> bool:
        return self._number % self._every == 0

    @override
    def start(self) -> None:
        if self._due:
            self._coverage.start()

    @override
    def stop(self) -> None:
        if self._due:
            self._coverage.stop()
            self._heard = True

    @override
    def take(self) -> dict[str, list[Arc]]:
        if not self._heard:
            return {}
        self._heard = False
        data = self._coverage.get_data()
        found = {
            path: data.arcs(name) or [] for name in data.measured_files() if (path := _path(name))
        }
        self._coverage.erase()
        return found


class Monitoring(Tracer):
    """``sys.monitoring``: every line and every branch calls back once in the life of the rank, in
    any thread.

    It stays on between engines: switching it would instrument all code anew each time.
    """

    def __init__(self) -> None:
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        events = self._monitoring.events
        # From Python 3.14 on the two sides of a branch are events of their own.
        sides = [getattr(events, name, 0) for name in ("BRANCH_LEFT", "BRANCH_RIGHT")]
        branches = sides if all(sides) else [events.BRANCH]
        self._events = events.LINE
        self._tool = self._monitoring.COVERAGE_ID
        self._monitoring.use_tool_id(self._tool, "fuzzshard")
        self._monitoring.register_callback(self._tool, events.LINE, self._on_line)
        for event in branches:
            self._events |= event
            self._monitoring.register_callback(self._tool, event, self._on_branch)
        self._on = False
        self._one_sided = len(branches) == 1
        self._found: dict[str, list[Arc]] = {}
        self._sides: dict[tuple[CodeType, int], int] = {}

    @override
    def start(self) -> None:
        if not self._on:
            self._on = True
            self._monitoring.set_events(self._tool, self._events)

    @override
    def take(self) -> dict[str, list[Arc]]:
        found, self._found = self._found, {}
        return found

    def _on_line(self, code: CodeType, line: int) -> Any:
        if path := _path(code.co_filename):
            self._found.setdefault(path, []).append((0, line))
        return self._monitoring.DISABLE

    def _on_branch(self, code: CodeType, offset: int, destination: int) -> Any:
        path = _path(code.co_filename)
        if path is None:
            return self._monitoring.DISABLE
        source = _line_at(code, offset)
        self._found.setdefault(path, []).append((source, _next_line(code, destination, source)))
        if not self._one_sided:
            return self._monitoring.DISABLE
        # One event for both sides: it may be silent when both were seen.
        first = self._sides.setdefault((code, offset), destination)
        return self._monitoring.DISABLE if first != destination else None


def _line_at(code: CodeType, offset: int) -> int:
    return next(
        (n for start, end, n in code.co_lines() if start <= offset < end and n),
        code.co_firstlineno,
    )


def _next_line(code: CodeType, offset: int, source: int) -> int:
    """The line that a jump to ``offset`` leads to; the end of the function is minus its first
    line.

    The instruction there may belong to the branch itself: the end of a loop has the line of its
    head.
    """
    lines = (n for start, end, n in code.co_lines() if end > offset and n and n != source)
    return next(lines, -code.co_firstlineno)
