"""``weight_decay``, which any optimizer has."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.option import Tape
from fuzzshard.parts.options.optimizer import Optimizer, OptimizerOption, Trait


class WeightDecay(OptimizerOption):
    """The weight decay. AdamW decays by default."""

    name, place, choices = "weight_decay", 1, ("weight_decay",)
    meanings = {"optimizer:weight_decay": "any optimizer with weight decay"}

    @override
    def does(self, value: float) -> tuple[Trait, ...]:
        return ("moves_without_gradient",) if value else ()

    @override
    def given(self, value: float, optimizer: Optimizer) -> tuple[str, ...]:
        told = value or optimizer.does("decays_by_default")
        return (f"weight_decay={value}",) if told else ()

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact or not ("weight_decay" in swarm and tape.chance(60)):
            return spec
        return replace(spec, weight_decay=tape.pick((0.125, 0.01)))
