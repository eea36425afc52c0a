"""``momentum`` of SGD."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.option import Tape
from fuzzshard.parts.options.optimizer import Optimizer, OptimizerOption, Trait


class Momentum(OptimizerOption):
    """The momentum of SGD. With 0.5, products are exact."""

    name, place, choices = "momentum", 0, ("momentum",)
    meanings = {"optimizer:momentum": "SGD with momentum"}

    @override
    def does(self, value: float) -> tuple[Trait, ...]:
        return ("moves_without_gradient", "has_state") if value else ()

    @override
    def given(self, value: float, optimizer: Optimizer) -> tuple[str, ...]:
        return (f"momentum={value}",) if value and optimizer.does("takes_momentum") else ()

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        return replace(spec, momentum=0.5 * ("momentum" in swarm and tape.chance(80)))

    @override
    def settle(self, tape: Tape, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact:
            return spec
        takes = spec.does("takes_momentum")
        decimals = tape.pick((0.9, 0.5)) if takes else 0.0
        return replace(spec, momentum=decimals if spec.momentum else 0.0)
