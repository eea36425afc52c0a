"""The loss of a forward."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Loss(oracle.TensorOracle):
    """The loss of each forward, on every rank.

    It cannot see errors that cancel in the sum over all outputs. Cases with ``observe="losses"``
    have nothing else to compare.
    """

    name = "loss"
    place = 50
    looks = ("outputs",)
    of_forward = True
    is_loss = True
    handle = "expression"
    what = "loss"
    thing = "The loss"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return [(self.name, seen.loss)]

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> list[tuple[str, str]]:
        return [(self.name, watch.loss(index))]
