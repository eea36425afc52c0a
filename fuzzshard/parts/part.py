"""The base of every value that a Case is made of."""

from __future__ import annotations

import msgspec

Shape = tuple[int, ...]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every value a Case is made of: frozen, hashable, strict when decoded."""
