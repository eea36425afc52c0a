"""``skip_all_reduce_unused_params``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPFlag


class SkipAllReduceUnusedParams(DDPFlag):
    """Buckets whose parameters are unused on all ranks are not reduced."""

    name, place = "skip_all_reduce_unused_params", 5

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return tape.chance(25 if len(seen.arrived) <= 1 else 2)

    @override
    def excludes(self, value: bool, seen: Replicated) -> Reasons:
        if value and len(seen.arrived) > 1:
            yield (
                "unused parameters change",
                "distributed.py, class docstring, skip_all_reduce_unused_params: 'This requires "
                "that unused parameters remain the same across all ranks throughout the entire "
                "training process.'",
            )
