"""Parameters after a step of the optimizer."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Parameter(oracle.TensorOracle):
    """What is trained: shards under an engine that shards."""

    name = "parameter"
    place = 110
    looks = ("trained",)
    is_weight = True
    in_relations = True
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
