"""Statements of a script, as lines."""

from __future__ import annotations

import ast
import pprint

from fuzzshard.parts.names import check_path

LONG = 110
"""Characters of a line after which what it gives is said in lines of its own."""
_WIDTH = 105


def at(root: str, path: str) -> str:
    """Return the expression for the module or parameter at ``path`` below the variable ``root``.

    Raises :class:`UsageError` for what is no path: it comes from a file, and would be run.
    """
    return f"{root}.{check_path(path)}" if path else root


def indented(lines: list[str]) -> list[str]:
    """Return the body of a statement."""
    return [f"    {line}" for line in lines]


def assignment(name: str, value: object) -> list[str]:
    """Assigns a literal, over several lines where it is long."""
    first, *more = pprint.pformat(value, width=95, compact=True, sort_dicts=False).splitlines()
    return [f"{name} = {first}", *(" " * len(f"{name} = ") + line for line in more)]


def call_lines(function: str, arguments: list[str], brackets: str = "()") -> list[str]:
    """Return a call, or a list in other ``brackets``, over several lines where it is long."""
    begin, end = brackets[0], brackets[1]
    call = f"{function}{begin}{', '.join(arguments)}{end}"
    if len(call) <= _WIDTH:
        return [call]
    return [f"{function}{begin}", *(f"    {argument}," for argument in arguments), end]


def made_lines(variable: str, call: str) -> list[str]:
    """Assign the result of a call, over several lines where it is long."""
    made = ast.parse(call, mode="eval").body
    if not isinstance(made, ast.Call) or len(f"{variable} = {call}") <= _WIDTH:
        return [f"{variable} = {call}"]
    parts = (ast.get_source_segment(call, each) for each in (*made.args, *made.keywords))
    name = ast.get_source_segment(call, made.func)
    return call_lines(f"{variable} = {name}", [part for part in parts if part])


MODULUS = 2**31 - 1


def seed_of(*parts: object) -> int:
    """Return a stable seed below 2**31 for a name such as (case seed, FQN, step, rank).

    Plain arithmetic on the bytes of the joined parts, so that a reproducer can carry it in one
    line; the modulus is a prime, so every byte of a long name counts.
    """
    return int.from_bytes("/".join(map(str, parts)).encode(), "big") % MODULUS
