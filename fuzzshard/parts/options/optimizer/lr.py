"""The learning rate: one that keeps a few steps of a random model finite."""

from __future__ import annotations

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.option import Tape
from fuzzshard.parts.options.optimizer import Optimizer, OptimizerOption

_POWERS_OF_TWO = (0.0625, 0.03125, 0.125)
_SGD_RATES = (0.03125, 0.01, 0.02, 0.05)
_ADAM_RATES = (0.01, 0.015625, 0.003)


class LearningRate(OptimizerOption):
    """The learning rate."""

    name, place, always_told = "lr", 3, True

    @override
    def arguments(self, value: float) -> tuple[str, ...]:
        return (f"lr={value}",)

    @override
    def settle(self, tape: Tape, spec: Optimizer, *, exact: bool) -> Optimizer:
        rates = _SGD_RATES if spec.does("takes_momentum") else _ADAM_RATES
        return replace(spec, lr=tape.pick(_POWERS_OF_TWO if exact else rates))
