"""Texts that others wrote, as texts that a terminal and a script can take."""

from __future__ import annotations

from typing import Any


def printable(text: str) -> str:
    r"""Return ``text`` with ``\x1b`` in place of an escape, and so for every other character that
    prints nothing: a terminal would obey it, and a line of a script might end there.

    Line feeds and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def comment(text: str) -> str:
    """Return a text of anyone's as one line, of a comment."""
    return printable(" ".join(text.split()))


def all_printable(value: Any) -> Any:
    """Return decoded JSON with all its texts :func:`printable`, keys too."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [all_printable(each) for each in value]
    if isinstance(value, dict):
        return {printable(key): all_printable(each) for key, each in value.items()}
    return value
