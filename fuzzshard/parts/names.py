"""Names that come from files and that scripts have as they are, in expressions and within
quotes.
"""

from __future__ import annotations

import re

from fuzzshard.errors import UsageError

_PATH = re.compile(r"(\w+(\.\w+)*)?")
_NAME = re.compile(r"[\w., -]*")


def is_path(path: str) -> bool:
    """Tell whether a module or a parameter may have this path."""
    return _PATH.fullmatch(path) is not None


def check_path(path: str) -> str:
    """Return the path of a module or a parameter; raises :class:`UsageError` for anything else."""
    if not is_path(path):
        raise UsageError(f"{path!r} is no path in a model", "restore the entry")
    return path


def check_name(name: str) -> None:
    """Check what a finding is about, such as ``momentum_buffer of block0.linear0.weight``.

    Nothing in it could end a quote, or call anything. Raises :class:`UsageError`.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of anything in a model", "restore the entry")
