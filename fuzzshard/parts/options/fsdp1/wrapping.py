"""Units one by one, or ``auto_wrap_policy``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1, Reasons, SeenByFSDP1, Tape
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class Wrapping(FSDP1Option):
    """Whether units are wrapped one by one, bottom-up, or by an auto-wrap policy."""

    name, place = "wrapping", 2
    traits = {"policy": ("wraps_by_policy",)}
    meanings = {"fsdp1:policy": "units by an auto-wrap policy"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> str:
        return "policy" if drawing.tape.chance(30) else "manual"

    @override
    def draw_for_orders(self, tape: Tape) -> str:
        return "policy" if tape.chance(40) else "manual"

    @override
    def excludes(self, value: str, seen: SeenByFSDP1) -> Reasons:
        if value == "policy" and seen.has_aliased_units:
            yield (
                "an auto-wrap policy replaces a module where it is registered first, and nowhere "
                "else",
                "fuzzshard: wrap.py, _recursive_wrap visits named_children, which names a module "
                "once",
            )
