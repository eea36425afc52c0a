"""Seeds from names, so that deleting a module leaves every other tensor as it was."""

from __future__ import annotations

MODULUS = 2**31 - 1


def seed_of(*parts: object) -> int:
    """A stable seed below 2**31 for a name such as (case seed, FQN, step, rank).

    Plain arithmetic on the bytes of the joined parts, so that a reproducer can carry it in one
    line; the modulus is a prime, so every byte of a long name counts.
    """
    return int.from_bytes("/".join(map(str, parts)).encode(), "big") % MODULUS
