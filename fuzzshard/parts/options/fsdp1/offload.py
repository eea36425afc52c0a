"""``cpu_offload``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class Offload(FSDP1Option):
    """Whether parameters are offloaded to the CPU."""

    name, place, argument, is_rare = "offload", 6, 1, True
    texts = {True: "cpu_offload=CPUOffload(offload_params=True)"}
    traits = {True: ("offloads",)}
    meanings = {"fsdp1:offload": "parameters offloaded to the CPU"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        return drawing.cuda and drawing.tape.chance(10)

    @override
    def needs_cuda(self, value: bool) -> str | None:
        return "FSDP1's CPU offload needs CUDA" if value else None
