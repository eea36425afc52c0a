"""``static_graph``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.option import Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPFlag


class StaticGraph(DDPFlag):
    """``static_graph``: the reducer learns the order of gradients in the first iteration."""

    name, place = "static_graph", 3
    traits = {True: ("learns_graph",)}

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return tape.chance(25 if seen.graph_is_static else 2)

    @override
    def excludes(self, value: bool, seen: Replicated) -> Reasons:
        if value and not seen.graph_is_static:
            yield (
                "a graph that changes",
                "distributed.py, class docstring, static_graph: 'The set of used and unused "
                "parameters will not change ... How the graph is trained will not change during "
                "the whole training loop'",
            )
        if value and LOSSES[seen.case.loss].differentiates_twice:
            yield (
                "a backward through a backward, of which static_graph reduces after the first",
                "distributed.py, class docstring: 'This module doesn't work with "
                "torch.autograd.grad (i.e. it will only work if gradients are to be accumulated "
                "in .grad attributes of parameters)'; in the first iteration the end of any "
                "backward reduces (_DDPSink.backward)",
            )
