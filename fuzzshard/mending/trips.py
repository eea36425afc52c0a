"""Which tripwires a case has tripped, and which mends it has run. No torch import."""

from __future__ import annotations

from collections.abc import Callable

_tripped: set[str] = set()
_ran: set[str] = set()
_tell: Callable[[str], None] | None = None


def trip(slug: str) -> None:
    """Says that the cause ``slug`` has occurred in this case; called by tripwires, as often as
    they like.
    """
    if slug not in _tripped:
        _tripped.add(slug)
        if _tell is not None:
            _tell(slug)


def note_run(name: str) -> None:
    """Note that a function that the mend with this name edits runs."""
    _ran.add(name)


def noted_runs() -> set[str]:
    """Return the mends of which an edited function has run in this case."""
    return _ran


def listen(tell: Callable[[str], None]) -> None:
    """Has ``tell`` called with every cause that occurs, once in each case."""
    global _tell
    _tell = tell


def forget_trips() -> None:
    """Forget all, as a new case begins."""
    _tripped.clear()
    _ran.clear()
