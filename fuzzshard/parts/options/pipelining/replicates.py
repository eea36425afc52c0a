"""``replicates``: what makes the ranks of a stage train it together."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.pipelining import PipeliningOption


class Replicates(PipeliningOption):
    """``DistributedDataParallel`` around each stage, in place of ``fully_shard`` within it."""

    name = "replicates"
    traits = {True: ("wraps_stages",)}
    meanings = {"pipelining:ddp": "DistributedDataParallel is around every stage"}

    @override
    def draw(self, tape: Tape, case: Case) -> bool:
        return not any(g.policy or g.rounding() for g in case.wrap) and tape.chance(30)
