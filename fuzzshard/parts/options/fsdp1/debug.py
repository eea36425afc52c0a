"""The debug level of ``torch.distributed``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1, Reasons, SeenByFSDP1, Tape
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class Debug(FSDP1Option):
    """The debug level; ``DETAIL`` checks that ranks and iterations have the same order."""

    name, place, is_rare = "debug", 7, True
    traits = {"detail": ("checks_order",)}
    meanings = {"fsdp1:detail": "the debug level DETAIL"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> str:
        return "detail" if drawing.tape.chance(20) else "off"

    @override
    def draw_for_orders(self, tape: Tape) -> str:
        return "detail"

    @override
    def excludes(self, value: str, seen: SeenByFSDP1) -> Reasons:
        if value != "detail" and seen.ranks_differ:
            yield (
                "ranks run different programs, which FSDP1 checks at debug level DETAIL only",
                "_exec_order_utils.py, _check_order: 'only checks if the distributed debug level "
                "is DETAIL'",
            )
