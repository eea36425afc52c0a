"""The gradients of parameters, reduced over the mesh."""

from __future__ import annotations

from fuzzshard.parts import oracle


class Gradient(oracle.ParameterGradient):
    """What ``.grad`` has after a backward that synchronises."""

    name = "gradient"
    place = 70
    gradient = "reduced"
    in_relations = True
    what = "gradient of a parameter"
    thing = "The gradient of {name}"
    whole = ", gradients=True"
