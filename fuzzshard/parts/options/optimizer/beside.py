"""A second optimizer beside the first."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import Drawing
from fuzzshard.parts.options.optimizer import OptimizerOption


class Beside(OptimizerOption):
    """The class of a second optimizer, which gets what the first does not get.

    Of Muon: "Other parameters, such as bias, and embedding, should be optimized by a standard
    method such as AdamW" (torch/optim/_muon.py). "If your network has multiple optimizers, you may
    call scaler.unscale_ on any of them individually, and you must call scaler.step on each of them
    individually. However, scaler.update should only be called once" (amp_examples.rst).
    ``get_optimizer_state_dict`` takes both at once.
    """

    name = "beside"
    extension = Choice("second_optimizer", 10, 104, needed_by=("muon",), brings=("grad_scaler",))
    meanings = {"optimizer:second": "a second optimizer, for what the first does not get"}

    @override
    def value(self, drawing: Drawing) -> str | None:
        if "second_optimizer" not in drawing.swarm or drawing.tape.chance(20):
            return None
        exact = drawing.case.values == "dyadic"
        return "sgd" if exact or drawing.tape.chance(30) else "adamw"
