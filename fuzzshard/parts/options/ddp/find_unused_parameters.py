"""``find_unused_parameters``, which is on unless a case says otherwise."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class FindUnusedParameters(DDPOption):
    """Whether DDP looks for parameters that a forward does not use."""

    name, place = "find_unused_parameters", 0
    texts = {True: "find_unused_parameters=True"}
    traits = {True: ("marks_unused",)}
    meanings = {"ddp:no_find_unused_parameters": "DDP does not look for unused parameters"}

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return not tape.chance(60 if seen.arrived == {seen.trained} else 2)

    @override
    def excludes(self, value: bool, seen: Replicated) -> Reasons:
        learns = seen.case.ddp.does("learns_graph")
        if not value and not learns and any(some < seen.trained for some in seen.arrived):
            yield (
                "a backward misses a parameter, and find_unused_parameters is off",
                "distributed.py, class docstring, find_unused_parameters: 'Parameters that don't "
                "receive gradients as part of this graph are preemptively marked as being ready "
                "to be reduced'",
            )
