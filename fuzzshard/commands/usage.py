"""The help of a command is its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

_Command = TypeVar("_Command", bound=Callable[..., int])


def with_flowing_help(command: _Command) -> _Command:
    """Let the terminal break the lines of each parameter's description, as wide as it is."""
    head, rule, parameters = inspect.cleandoc(command.__doc__ or "").partition("\n----------\n")
    block = r"(?<=\n) {4}\S[^\n]*(?:\n {4}\S[^\n]*)*"
    flowing = re.sub(block, lambda b: f"    {' '.join(b[0].split())}", f"\n{parameters}")
    command.__doc__ = f"{head}{rule}{flowing[1:]}"
    return command
