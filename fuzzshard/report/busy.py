"""What a command that takes long is busy with: a line on a terminal, now and then one in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

ROOM_FOR_ECHO = 6
"""Columns that stay free at the right: a terminal echoes each Ctrl-C as ``^C`` where the cursor
is, and what wraps then cannot be cleared.
"""

LOG_SECONDS = 30.0
"""Seconds between two lines where stderr is no terminal, as in CI."""

T = TypeVar("T")
Doing = str | Callable[[], str]
"""What is done, in words; a callable is asked whenever the line is drawn."""


class Busy:
    """The line; :meth:`now` says what is done, :meth:`advance` that one thing of ``total`` is."""

    def __init__(self, doing: Doing, total: int | None, progress: Progress) -> None:
        self.doing = doing
        self.total = total
        self.done = 0
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def now(self, doing: Doing) -> None:
        """Says what is done from now on."""
        self.doing = doing

    def advance(self) -> None:
        """Count one more that is done."""
        self.done += 1
        self._progress.advance(self._task)

    @property
    def said(self) -> str:
        """What is done at this moment."""
        return self.doing if isinstance(self.doing, str) else self.doing()

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the ``items``, each of which is done when the next one is asked for."""
        for item in items:
            yield item
            self.advance()


class _DoingColumn(ProgressColumn):
    """The words of a :class:`Busy`, cut where the line ends."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self.busy: Busy | None = None

    def render(self, task: Task) -> Text:
        """Return what is done at this moment."""
        return Text(self.busy.said if self.busy is not None else "")


class _Line(Progress):
    """Leaves :data:`ROOM_FOR_ECHO`."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the line."""
        yield from map(_Narrower, super().get_renderables())


class _Narrower:
    """Draws ``line`` that much narrower than the terminal."""

    def __init__(self, line: RenderableType) -> None:
        self._line = line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line."""
        yield Constrain(self._line, max(20, options.max_width - ROOM_FOR_ECHO))


@contextlib.contextmanager
def _logged(line: Busy) -> Iterator[None]:
    """Prints every :data:`LOG_SECONDS` on stderr what ``line`` says."""
    began, over = time.monotonic(), threading.Event()

    def log() -> None:
        while not over.wait(LOG_SECONDS):
            done = f", {line.done} of {line.total} done" if line.total is not None else ""
            so_far = f"{time.monotonic() - began:.0f} s so far"
            print(f"fuzzshard: {line.said}{done}, {so_far}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def busy(doing: Doing, total: int | None = None) -> Iterator[Busy]:
    """Shows on stderr what is done, how long it has taken, and how much of ``total`` is left: in
    place on a terminal, else in a line now and then.

    What the block prints comes above the line. A Ctrl-C goes on with how far it was: the message
    of the KeyboardInterrupt that is raised says so.
    """
    # without soft wrapping, lines that are printed meanwhile would be broken at its width
    console = Console(stderr=True, soft_wrap=True)
    words = _DoingColumn()
    terminal = sys.stderr.isatty()
    counts = () if total is None else (MofNCompleteColumn(), TimeRemainingColumn())
    progress = _Line(
        SpinnerColumn(),
        words,
        *counts,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not terminal,
    )
    line = words.busy = Busy(doing, total, progress)
    try:
        with progress if terminal else _logged(line):
            yield line
    except KeyboardInterrupt as error:
        done = f"{line.done} of {total} done" if total else ""
        raise KeyboardInterrupt(str(error) or done) from None
