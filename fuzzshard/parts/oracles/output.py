"""The outputs of a forward."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Output(oracle.TensorOracle):
    """Every output of the module that is called, on every rank, after each forward.

    It cannot see a wrong value that no output depends on, or one below the tolerance of its rung.
    """

    name = "output"
    place = 40
    looks = ("outputs",)
    of_forward = True
    handle = "expression"
    what = "output"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.outputs.items()

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> list[tuple[str, str]]:
        return watch.outputs(index)
