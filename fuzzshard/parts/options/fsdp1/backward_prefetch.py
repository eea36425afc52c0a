"""``backward_prefetch``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class BackwardPrefetch(FSDP1Option):
    """When the next unit is gathered in a backward."""

    name, place, argument = "backward_prefetch", 4, 2
    texts = {
        "post": "backward_prefetch=BackwardPrefetch.BACKWARD_POST",
        None: "backward_prefetch=None",
    }
    meanings = {
        "fsdp1:backward_prefetch_pre": "BACKWARD_PRE",
        "fsdp1:backward_prefetch_post": "BACKWARD_POST",
        "fsdp1:backward_prefetch_none": "backward_prefetch=None",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str | None:
        return drawing.tape.weighted((("pre", 4), ("post", 3), (None, 2)))
