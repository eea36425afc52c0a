"""The options of the engine ``context_parallel``, one file each; their fields are listed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from fuzzshard.parts.option import Case, Option, Tape, WithOptions, options_of

Trait = Literal["balances"]
"""What values do that somebody else has to know: a rank has a part of the first half of the
positions and one of the second half.
"""


class ContextParallel(WithOptions["ContextParallelOption", Trait], frozen=True, kw_only=True):
    """Options of the engine ``context_parallel``."""

    load_balance: bool = True
    rotate_method: Literal["allgather", "alltoall"] = "allgather"


class ContextParallelOption(Option):
    """One of them; its arguments are statements."""

    traits: ClassVar[Mapping[Any, tuple[Trait, ...]]] = {}

    def draw(self, tape: Tape, case: Case) -> Any:
        """Return a value for a case that has all but these."""
        return self.default


CONTEXT_PARALLEL_OPTIONS = options_of(ContextParallel, __name__, __path__, ContextParallelOption)
"""In the order of their fields."""
