"""``forward_prefetch``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1, Reasons, SeenByFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class ForwardPrefetch(FSDP1Option):
    """Whether the next unit is gathered before a forward computes."""

    name, place, argument = "forward_prefetch", 3, 3
    texts = {True: "forward_prefetch=True"}
    meanings = {"fsdp1:forward_prefetch": "forward_prefetch=True"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        return drawing.tape.chance(30)

    @override
    def excludes(self, value: bool, seen: SeenByFSDP1) -> Reasons:
        if value and seen.ranks_differ:
            yield (
                "ranks run different programs: prefetches keep to the first order and may hang",
                "fully_sharded_data_parallel.py, class docstring, forward_prefetch: 'This should "
                "only be used for static-graph models since the prefetching follows the first "
                "iteration's execution order.'",
            )
