"""``use_orig_params``."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.option import Case, DrawingFSDP1, Tape
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class UseOrigParams(FSDP1Option):
    """Whether the optimizer gets the original parameters or flat ones."""

    name, place, argument = "use_orig_params", 1, 6
    texts = {True: "use_orig_params=True"}
    traits = {True: ("has_originals",)}
    meanings = {
        "fsdp1:orig_params": "use_orig_params=True",
        "fsdp1:flat_params": "use_orig_params=False",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        return drawing.tape.chance(45 if drawing.uniform else 90)

    @override
    def draw_for_orders(self, tape: Tape) -> bool:
        return tape.chance(40)

    @override
    def features(self, value: bool, case: Case) -> Iterator[str]:
        yield f"fsdp1:{'orig_params' if value else 'flat_params'}"
