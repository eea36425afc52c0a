"""Where the events of a campaign go: JSONL, a live panel, or plain lines."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import msgspec
from rich.console import Console
from rich.live import Live

from fuzzshard.events import (
    CampaignFinished,
    CaseJudged,
    Event,
    PhaseChanged,
    ShrinkProgress,
)
from fuzzshard.report.lines import event_lines, folded, progress_line
from fuzzshard.report.panel import CampaignPanel
from fuzzshard.report.stages import CampaignProgress

SECONDS_BETWEEN_PROGRESS_LINES = 10.0
SECONDS_BETWEEN_PANELS = 0.25

Sink = Callable[[Event], None]


@contextlib.contextmanager
def make_sink(*, json: bool, stream: TextIO | None = None) -> Iterator[Sink]:
    """Yield the sink for ``stream`` (stdout): JSONL if asked for, a panel on a terminal, plain
    lines elsewhere.
    """
    stream = stream or sys.stdout
    if json:
        yield json_sink(stream)
    elif stream.isatty():
        with _panel_sink(stream) as sink:
            yield sink
    else:
        yield plain_sink(stream)


def tee(*sinks: Sink) -> Sink:
    """Hands each event to all of ``sinks``, in this order."""

    def sink(event: Event) -> None:
        for each in sinks:
            each(event)

    return sink


def json_sink(stream: TextIO) -> Sink:
    """Return one JSON object a line, flushed, with the field ``event`` naming its type."""

    def sink(event: Event) -> None:
        stream.write(msgspec.json.encode(event).decode() + "\n")
        stream.flush()

    return sink


def plain_sink(stream: TextIO) -> Sink:
    """Return a sink of findings as they come, of progress every now and then, and of a summary."""
    progress = CampaignProgress()
    last = 0.0

    def sink(event: Event) -> None:
        nonlocal last
        progress.update(event)
        lines = list(event_lines(event))
        told = isinstance(event, CaseJudged | PhaseChanged | ShrinkProgress)
        # Nothing else may be told while a script is checked, which takes minutes.
        is_long = isinstance(event, PhaseChanged) and event.phase == "verifying"
        if is_long or (told and event.elapsed - last >= SECONDS_BETWEEN_PROGRESS_LINES):
            last = event.elapsed
            lines.append(progress_line(progress))
        if lines:
            stream.write("\n".join(lines) + "\n")
            stream.flush()

    return sink


@contextlib.contextmanager
def _panel_sink(stream: TextIO) -> Iterator[Sink]:
    """The panel at the bottom, the lines of findings above it, so that they outlive it.

    One lock is held for each change of the screen. With a thread of its own for refreshing, rich
    may count the lines of a panel that another thread has drawn anew, and leave its border behind.
    """
    progress = CampaignProgress()
    console = Console(file=stream, highlight=False, markup=False, soft_wrap=True)
    live = Live(CampaignPanel(progress), console=console, auto_refresh=False, transient=True)
    drawing, over = threading.RLock(), threading.Event()

    def sink(event: Event) -> None:
        with drawing:
            progress.update(event)
            if isinstance(event, CampaignFinished):
                live.stop()
            for line in event_lines(event, console.width):
                console.print(folded(line, console.width))

    def refresh() -> None:
        while not over.wait(SECONDS_BETWEEN_PANELS):
            with drawing:
                live.refresh()

    thread = threading.Thread(target=refresh, name="fuzzshard-panel", daemon=True)
    with live:
        thread.start()
        try:
            yield sink
        finally:
            over.set()
            thread.join()
