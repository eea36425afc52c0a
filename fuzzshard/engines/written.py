"""Runs on a rank what options say as a script writes it: the texts are fuzzshard's own tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def evaluate(text: str, **names: Any) -> Any:
    """Return the value of an expression over ``names``."""
    return eval(text, names)


def called(arguments: Iterable[str], **names: Any) -> dict[str, Any]:
    """Return the keyword arguments that are written so."""
    found: dict[str, Any] = evaluate(f"dict({', '.join(arguments)})", **names)
    return found


def run(lines: Iterable[str], library: dict[str, Any], **objects: Any) -> None:
    """Run statements over a ``library`` and ``objects``; functions that they define see the
    library alone, so that a hook does not keep its module alive.
    """
    exec("\n".join(lines), library, objects)
