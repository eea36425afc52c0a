"""Paths of modules and FQNs of parameters: dotted names from the root, which is the empty path."""

from __future__ import annotations

from collections.abc import Iterable


def is_within(path: str, ancestor: str) -> bool:
    """Return whether ``path`` is ``ancestor`` or below it."""
    return not ancestor or path == ancestor or path.startswith(ancestor + ".")


def is_within_any(path: str, ancestors: Iterable[str]) -> bool:
    """Return whether ``path`` is one of ``ancestors`` or below one."""
    return any(is_within(path, ancestor) for ancestor in ancestors)
