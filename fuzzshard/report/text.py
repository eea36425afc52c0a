"""Drawings as plain text, for what is not a terminal: pytest's reports, assertion messages,
pipes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType

from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import replay_command
from fuzzshard.report.show import observed_and_expected, show_entry
from fuzzshard.verdict import Finding

WIDTH = 100


def drawn(entry: CorpusEntry, path: Path, console: Console | None = None) -> str:
    """What ``fuzzshard show`` prints of ``entry``, which lies at ``path``, on ``console``.

    The command that replays it is one line, however long: people copy it.
    """
    text = as_text(show_entry(entry), console)
    return f"{text}\nReplay\n  {replay_command(path, entry)}" if entry.signature else text


def drawn_findings(findings: Iterable[Finding]) -> str:
    """What was observed against what was expected."""
    return as_text(observed_and_expected(findings))


def as_text(drawing: RenderableType, console: Console | None = None) -> str:
    """``drawing`` without blanks at the ends of lines; without a console also without colours."""
    console = console or Console(
        width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False
    )
    with console.capture() as capture:
        console.print(drawing)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
