"""The command line in this process."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

import pytest

from fuzzshard import cli


class Ran(NamedTuple):
    """The exit code of a command and what it printed."""

    code: int
    out: str
    error: str


def fuzzshard(*arguments: object) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def ran(*arguments: object) -> Ran:
    """What comes of a command."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = fuzzshard(*arguments)
    return Ran(code, out.getvalue(), error.getvalue())
