"""Where code of the user's stood, from tracebacks and from stacks that faulthandler wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fuzzshard.subject.functions import NOT_THE_USERS

_RAISED = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_STANDING = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


class Frame(NamedTuple):
    """A line of code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({Path(self.file).name}:{self.line})"


def raised_in(traceback: str) -> str:
    """Say where an exception was raised, and by which line of the user's if that is another."""
    return _described([Frame(f, int(n), name) for f, n, name in _RAISED.findall(traceback)][::-1])


def stands_in(stack: str) -> str:
    """Say what the main thread of a rank is doing."""
    main = stack.rpartition("Current thread")[2]
    return _described([Frame(f, int(n), name) for f, n, name in _STANDING.findall(main)])


def _described(innermost_first: Sequence[Frame]) -> str:
    if not innermost_first:
        return ""
    own = [f for f in innermost_first if not any(part in f.file for part in NOT_THE_USERS)]
    inner = innermost_first[0]
    if not own or own[0] == inner:
        return f"in {inner}"
    return f"in {inner}, called by {own[0]}"
