"""``scale_grads``: whether gradients are divided by the number of microbatches."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.pipelining import PipeliningOption


class ScaleGrads(PipeliningOption):
    """By default the schedule divides, and the loss of a microbatch is a mean over its rows."""

    name, argument = "scale_grads", 1
    texts = {False: "scale_grads=False"}
    traits = {True: ("scales",)}
    meanings = {"pipelining:sums": "gradients of microbatches are added up: scale_grads=False"}

    @override
    def draw(self, tape: Tape, case: Case) -> bool:
        """``zero_grad`` leaves what no optimizer has, which every iteration would divide again."""
        return not (case.optimizer.left_out or tape.chance(30))
