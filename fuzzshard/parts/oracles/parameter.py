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
    handle = "parameter"
    what = "parameter after the optimizer step"
    thing = "{name} after the optimizer step"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        seen.keep_trained(self, index)

    @override
    def one(self, watch: oracle.Watch, index: int) -> str:
        return watch.parameter

    @override
    def entries(self, watch: oracle.Watch, index: int) -> str:
        return watch.entries(index, "p", oracle=self.name)

    @override
    def whole(self, watch: oracle.Watch, index: int) -> str:
        return ""
