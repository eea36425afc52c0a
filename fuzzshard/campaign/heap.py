"""The C heap of the coordinator, whose many threads would each keep what they once needed."""

from __future__ import annotations

import contextlib
import ctypes

_M_ARENA_MAX = -8  # malloc.h of glibc
_NUM_ARENAS = 2

CASES_BETWEEN_TRIMS = 100


def limit_arenas() -> None:
    """Keeps glibc from giving each thread a heap of its own, eight for each core, which never
    shrinks.

    Does nothing with another C library. See mallopt(3), M_ARENA_MAX.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _NUM_ARENAS)


def trim_heap() -> None:
    """Gives free pages back to the system, with glibc. See malloc_trim(3)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
