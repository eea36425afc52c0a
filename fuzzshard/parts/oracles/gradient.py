"""The gradients of parameters, reduced over the mesh."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle


class Gradient(oracle.ParameterGradient):
    """What ``.grad`` has after a backward that synchronises."""

    name = "gradient"
    place = 70
    gradient = "reduced"
    in_relations = True
    what = "gradient of a parameter"
    thing = "The gradient of {name}"

    @override
    def whole(self, watch: oracle.Watch, index: int) -> str:
        if watch.flat_gradients:
            raise UsageError(
                "FSDP1 gathers no gradients of flat parameters for a script", "replay the case"
            )
        return ", gradients=True"
