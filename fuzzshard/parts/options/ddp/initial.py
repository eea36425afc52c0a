"""How ranks come to the values of a case."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class Initial(DDPOption):
    """Whether ranks begin with equal values, only the first one has the right ones, or
    ``init_sync`` is off.
    """

    name, place = "initial", 8
    texts = {"unsynced": "init_sync=False"}
    traits = {"first_rank": ("spoils",)}
    meanings = {
        "ddp:initial_first_rank": "only the first rank has the right values when DDP is "
        "constructed",
        "ddp:initial_unsynced": "init_sync=False",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str:
        return tape.weighted((("equal", 8), ("first_rank", 3), ("unsynced", 2)))

    @override
    def excludes(self, value: str, seen: Replicated) -> Reasons:
        if not (seen.by_replicate and value == "first_rank"):
            return
        if seen.touched_before_forward:
            yield (
                "parameters are used before the first forward, which synchronises them",
                seen.LATE,
            )
        if any(op.rebuilds for op in seen.case.schedule):
            yield "a model that is built anew is used before its first forward", seen.LATE
