"""Parameters after a step of the optimizer."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Parameter(oracle.TensorOracle):
    """Every parameter after a step of the optimizer, as shards under an engine that shards.

    It cannot see why a step was wrong; ``gradient`` comes first and says so where it can.
    """

    name = "parameter"
    place = 110
    looks = ("trained",)
    is_weight = True
    in_flat = True
    handle = "variable"
    value = "p"
    single = "{one}"
    whole = ""
    what = "parameter after the optimizer step"
    thing = "{name} after the optimizer step"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.engine.observed().items()
