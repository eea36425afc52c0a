"""Statements of a script, as lines."""

from __future__ import annotations

import pprint

_WIDTH = 105


def at(root: str, path: str) -> str:
    """The expression for the module or parameter at ``path`` below the variable ``root``."""
    return f"{root}.{path}" if path else root


def indented(lines: list[str]) -> list[str]:
    """The body of a statement."""
    return [f"    {line}" for line in lines]


def assignment(name: str, value: object) -> list[str]:
    """Assigns a literal, over several lines where it is long."""
    first, *more = pprint.pformat(value, width=95, compact=True, sort_dicts=False).splitlines()
    return [f"{name} = {first}", *(" " * len(f"{name} = ") + line for line in more)]


def call_lines(function: str, arguments: list[str]) -> list[str]:
    """A call, over several lines where it is long."""
    call = f"{function}({', '.join(arguments)})"
    if len(call) <= _WIDTH:
        return [call]
    return [f"{function}(", *(f"    {argument}," for argument in arguments), ")"]
