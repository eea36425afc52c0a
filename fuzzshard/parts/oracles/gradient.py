"""The gradients of parameters, reduced over the mesh."""

from __future__ import annotations

from fuzzshard.parts import oracle


class Gradient(oracle.ParameterGradient):
    """The reduced gradient of every parameter after a backward that synchronises.

    It is compared before the optimizer steps, so that Adam cannot hide a wrong scale. Each rank
    compares its own shard. Whether there is a gradient, its shape and its dtype must agree too.

    It cannot see which of several reductions made a wrong sum.
    """

    name = "gradient"
    place = 70
    gradient = "reduced"
    what = "gradient of a parameter"
    thing = "The gradient of {name}"
    whole = ", gradients=True"
