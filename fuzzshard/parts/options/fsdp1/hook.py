"""Communication hooks."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1, Reasons, SeenByFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class Hook(FSDP1Option):
    """Torch's communication hook, or one that divides after the sum."""

    name, place, further = "hook", 10, True
    traits = {"torch": ("torch_hook",), "average": ("own_hook",)}
    meanings = {
        "fsdp1:hook_torch": "torch's own communication hook for FSDP1",
        "fsdp1:hook_average": "a communication hook that divides after the sum",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str | None:
        if drawing.case.fsdp1.does("hybrid"):
            return None
        return drawing.tape.weighted(((None, 6), ("average", 3), ("torch", 3)))

    @override
    def excludes(self, value: str | None, seen: SeenByFSDP1) -> Reasons:
        if value is not None and seen.case.fsdp1.does("hybrid"):
            yield (
                "a communication hook of a hybrid strategy",
                "fully_sharded_data_parallel.py, register_comm_hook: 'Communication hook is not "
                "supported for hybrid strategies'",
            )
