"""Replaces lines of a function of torch that wait for something."""

import os
from pathlib import Path

from fuzzshard.mending.mend import Edit
from fuzzshard.mending.patch import compiled, function_of
from fuzzshard.mending.source import edited_functions

REACHED = "FUZZSHARD_PLANTED_REACHED"
"""The variable that names a file which is there once a planted line has run."""


def reached() -> None:
    if file := os.environ.get(REACHED):
        Path(file).touch()


def plant(target: str, *lines: tuple[str, str]) -> None:
    """Replace lines, each old ones and new ones.

    Raise :class:`fuzzshard.mending.source.NotAsKnown` for a torch that does not have them.
    """
    function = function_of(target)
    assert function is not None, target
    ((before, after),) = edited_functions(Edit(target, *each) for each in lines).values()
    function.__globals__["planted_line_reached"] = reached
    function.__code__ = compiled(target, before, after, function.__code__)
