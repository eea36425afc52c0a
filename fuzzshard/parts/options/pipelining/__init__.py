"""The options of the engine ``pipelining``, one file each; their fields are listed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from fuzzshard.parts.option import Case, Option, Tape, WithOptions, options_of

Trait = Literal[
    "fills_pipeline", "several_stages", "v_shaped", "zero_bubble", "scales", "wraps_stages"
]
"""What values do that somebody else has to know: no stage may be without a microbatch; a rank has
two stages, the second of which lies in the opposite order; gradients of weights are computed apart
from those of inputs; gradients are divided by the number of microbatches; DDP is around stages.
"""


class Pipelining(WithOptions["PipeliningOption", Trait], frozen=True, kw_only=True):
    """Options of the engine ``pipelining``."""

    schedule_class: Literal[
        "gpipe",
        "1f1b",
        "interleaved_1f1b",
        "looped_bfs",
        "interleaved_zero_bubble",
        "zbv_zero_bubble",
    ] = "gpipe"
    scale_grads: bool = True
    replicates: bool = False


class PipeliningOption(Option):
    """One of them."""

    traits: ClassVar[Mapping[Any, tuple[Trait, ...]]] = {}

    def draw(self, tape: Tape, case: Case) -> Any:
        """Return a value for a case that has all but these."""
        return self.default


PIPELINING_OPTIONS = options_of(Pipelining, __name__, __path__, PipeliningOption)
"""In the order of their fields."""
