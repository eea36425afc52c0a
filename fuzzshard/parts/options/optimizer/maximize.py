"""``maximize``."""

from __future__ import annotations

from fuzzshard.parts.op import Choice
from fuzzshard.parts.options.optimizer import OptimizerOption


class Maximize(OptimizerOption):
    """Whether steps go up the gradient."""

    name, extension, for_matrices = "maximize", Choice("maximize", 6, 100), False
    texts = {True: "maximize=True"}
    meanings = {"optimizer:maximize": "maximize=True"}
