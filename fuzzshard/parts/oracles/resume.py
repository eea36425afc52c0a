"""What a checkpoint brings back: the states of the optimizer, and parameters that were corrupted.

The negative control is :mod:`fuzzshard.oracles.resume`: what a load restores must have been lost
before.
"""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Resume(oracle.StateOracle):
    """What a checkpoint brings back: optimizer states, and parameters that were corrupted.

    States are compared after saving and loading, parameters after they were corrupted and loaded.

    It cannot see states that saving never wrote and that a fresh optimizer makes again with the
    same values.
    """

    name = "resume"
    place = 100
    looks = ("optimizer", "corrupted")
    what = "saved and loaded state"
    value = "p"
    thing = "{name} after saving, corrupting or loading"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.engine.observed().items()

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        if look == "corrupted":
            oracle.TensorOracle.record(self, seen, index, look)
        else:
            super().record(seen, index, look)

    @override
    def one(self, watch: oracle.Watch, index: int) -> str:
        corrupts = "corrupted" in watch.scope.ops[index].looks
        return watch.scope.at(watch.assertion.name) if corrupts else super().one(watch, index)

    @override
    def entries(self, watch: oracle.Watch, index: int) -> str:
        if "corrupted" in watch.scope.ops[index].looks:
            return oracle.TensorOracle.entries(self, watch, index)
        return super().entries(watch, index)
