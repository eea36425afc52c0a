"""What the contract of an engine does not cover, as rows of a table over features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Exclusion(NamedTuple):
    """Why a case is not run under an engine.

    ``source`` is what the documentation says, with its place; or, where it begins with
    "fuzzshard", what an engine is not asked to do here although it could, or what the reference
    does not model.
    """

    reason: str
    source: str


Excludes = Mapping[str, Exclusion]
"""By what a case has, why it is not run: ``"op:cast & !wrap:root|mesh:tensor"`` is a case with
``op:cast`` that lacks ``wrap:root`` or has ``mesh:tensor``.

Words with a colon are features, and ``*`` in them stands for anything. Others are conditions
(:mod:`fuzzshard.analysis.conditions`), which are asked last.
"""


def where(has: str, rows: Excludes) -> dict[str, Exclusion]:
    """Return ``rows`` for cases alone that also have this."""
    return {f"{has} & {key}": row for key, row in rows.items()}
