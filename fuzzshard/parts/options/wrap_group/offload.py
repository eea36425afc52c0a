"""``offload_policy``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import DrawingGroups
from fuzzshard.parts.options.wrap_group import GroupOption


class Offload(GroupOption):
    """Whether parameters, gradients and optimizer states are on the CPU, pinned or not."""

    name, place = "offload", 0
    extension = Choice("offload", 9, place=2)
    texts = {
        "pinned": "offload_policy=CPUOffloadPolicy()",
        "unpinned": "offload_policy=CPUOffloadPolicy(pin_memory=False)",
    }
    prefix = "offload:"
    meanings = {
        "offload:unpinned": "CPUOffloadPolicy(pin_memory=False)",
        "offload:pinned": "CPUOffloadPolicy(pin_memory=True)",
    }

    @override
    def needs_cuda(self, value: str | None) -> str | None:
        return "pinned memory needs CUDA" if value == "pinned" else None

    @override
    def draw(self, drawing: DrawingGroups) -> Callable[[int, Any], Any]:
        kind = "pinned" if drawing.cuda and drawing.tape.chance(50) else "unpinned"
        most = drawing.tape.chance(80)
        if drawing.cuda and drawing.case.optimizer.combines_elements:
            return lambda index, present: present  # see ``analysis.needs.needs_cpu``
        return lambda index, present: kind if most or drawing.tape.chance(50) else present
