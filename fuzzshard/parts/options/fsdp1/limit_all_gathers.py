"""``limit_all_gathers``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class LimitAllGathers(FSDP1Option):
    """Whether the host waits before it gathers many units ahead."""

    name, place, argument = "limit_all_gathers", 5, 5
    texts = {False: "limit_all_gathers=False"}
    meanings = {"fsdp1:all_gathers_unlimited": "limit_all_gathers=False"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        return not drawing.tape.chance(20)
