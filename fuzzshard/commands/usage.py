"""The help of a command is its docstring; some commands come in groups."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from cyclopts import App

_Command = TypeVar("_Command", bound=Callable[..., int])


def with_flowing_help(command: _Command) -> _Command:
    """Let the terminal break the lines of each parameter's description, as wide as it is."""
    head, rule, parameters = inspect.cleandoc(command.__doc__ or "").partition("\n----------\n")
    block = r"(?<=\n) {4}\S[^\n]*(?:\n {4}\S[^\n]*)*"
    flowing = re.sub(block, lambda b: f"    {' '.join(b[0].split())}", f"\n{parameters}")
    command.__doc__ = f"{head}{rule}{flowing[1:]}"
    return command


def group_app(name: str, sort_key: int, text: str, commands: Iterable[Callable[..., int]]) -> App:
    """Return the group ``name`` of commands, in their order; ``text`` is its help."""
    app = App(
        name=name,
        sort_key=sort_key,
        help=text,
        help_epilogue="",
        help_format="plaintext",
        version_flags=(),
    )
    for order, command in enumerate(commands):
        own = command.__name__.rstrip("_")
        app.command(with_flowing_help(command), name=own, help_epilogue="", sort_key=order)
    return app
