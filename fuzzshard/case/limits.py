"""How large a case may be that others wrote, before anything follows from it.

What is inferred of a case takes time that grows with its numbers: a mesh of 2**31 ranks, asked for
all its shapes, takes hours.
"""

from __future__ import annotations

from typing import Any

from fuzzshard.errors import InvalidCase

LARGEST_NUMBER = 2**20
"""No whole number of a case but its seed may exceed this, whatever it is of."""
LARGEST_DIM = 4096
"""No tensor dimension of a case may exceed this: a hand-edited case must not exhaust a machine."""
MOST_VALUES = 20_000
"""In the JSON of a case; one of a hundred ops and modules has a tenth."""
LONGEST_TEXT = 1000
"""Characters of a name or a pattern."""
LARGEST_SEED = 2**63 - 1


def check_limits(fields: Any) -> None:
    """Check a case in decoded JSON, whatever its fields are; raises :class:`InvalidCase`."""
    if _count(fields) > MOST_VALUES:
        raise InvalidCase(f"the case has more than {MOST_VALUES} values", "make it smaller")


def _count(value: Any, name: str = "") -> int:
    """Return how many values there are, each checked by itself."""
    if isinstance(value, dict):
        return sum(_count(each, str(key)) for key, each in value.items()) + 1
    if isinstance(value, list):
        return sum(_count(each, name) for each in value) + 1
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise InvalidCase(
            f"{name} has {len(value)} characters", f"use at most {LONGEST_TEXT} in a text"
        )
    most = LARGEST_SEED if name == "seed" else LARGEST_NUMBER
    if isinstance(value, int) and abs(value) > most:
        raise InvalidCase(f"{name} is {value}", f"use at most {most}")
    return 1
