"""``finalize_backward()`` of the user."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class ManualFinalization(DDPOption):
    """``finalize_backward()`` after every synchronised backward."""

    name, place, of_wrapper = "manual_finalization", 11, True
    method = "finalize_backward"
    traits = {True: ("finalized_by_user",)}
    meanings = {"ddp:manual_finalization": "finalize_backward() after every synchronised backward"}

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return tape.chance(30)

    @override
    def lines(self, value: bool, engine: str, group: str) -> list[str]:
        return [f"{engine}.require_manual_backward_finalization = True"] if value else []

    @override
    def excludes(self, value: bool, seen: Replicated) -> Reasons:
        if seen.by_replicate and value:
            yield "replicate() has no join() and no finalize_backward()", seen.LATE
