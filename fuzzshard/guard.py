"""Processes that end with whoever started them, and everything that they have started in turn.

``python -m fuzzshard.guard COMMAND...`` runs a command for as long as its standard input stays
open: a pipe from whoever asks, which closes when they are gone, or want no more. Then the command
ends, and whatever it has started, be it in sessions of their own. The exit code is the command's;
128 and its number for a signal.

It runs in no process that has threads, as between fork and exec nothing may be done in one; and
the signal that prctl(2) sends when a parent dies reaches children only, no grandchildren.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_POLL_SECONDS = 0.05


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this signal when the thread that started this process ends; 0:
    none.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Let what descendants have started and left behind become children of this
    process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(but: Collection[int] = ()) -> None:
    """Kills the children of this process, and after :func:`adopt_orphans` all below them, ``but``
    some.
    """
    while left := [child for child in psutil.Process().children() if child.pid not in but]:
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        for child in left:
            os.waitpid(child.pid, 0)  # after that its own children are ours


def main() -> None:
    """Runs the command and ends as it does, or when nobody wants it any more."""
    adopt_orphans()
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    while (code := command.poll()) is None:
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            break
    end_children()
    if code is None:
        code = -signal.SIGKILL
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
