"""What the optimizer does not get."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import Drawing
from fuzzshard.parts.options.optimizer import OptimizerOption


class Exclude(OptimizerOption):
    """Modules or parameters that the optimizer does not get."""

    name, extension = "exclude", Choice("exclude", 10, 1, needed_by=("second_optimizer",))
    leaves_out = True
    meanings = {"optimizer:exclude": "an optimizer that does not get all parameters"}

    @override
    def value(self, drawing: Drawing) -> tuple[str, ...]:
        return drawing.some_parameters() if "exclude" in drawing.swarm else ()
