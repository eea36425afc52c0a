"""The line that says what a command does."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from fuzzshard.report.busy import ROOM_FOR_ECHO, busy


class Terminal(io.StringIO):
    """What a command takes for a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_line_leaves_room_for_the_echo_of_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with busy("word " * 20, 5) as line:
        line.advance()
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    drawn = [text for text in re.split(r"[\r\n]", plain) if text]
    assert "word" in drawn[0]
    assert max(map(len, drawn)) <= 60 - ROOM_FOR_ECHO


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fuzzshard.report.busy.LOG_SECONDS", 0.05)
    with busy("replaying", 5) as line:
        line.advance()
        time.sleep(0.2)
        line.now("stopping")
        time.sleep(0.2)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "fuzzshard: replaying, 1 of 5 done, 0 s so far"
    assert said[-1] == "fuzzshard: stopping, 1 of 5 done, 0 s so far"
