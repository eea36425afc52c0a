"""Which optimizer it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.option import Tape
from fuzzshard.parts.options.optimizer import Optimizer, OptimizerOption


class Kind(OptimizerOption):
    """``torch.optim.SGD``, ``Adam`` or ``AdamW``."""

    name, place, choices = "kind", 2, ("adam",)
    traits = {
        "sgd": ("takes_momentum",),
        "adam": ("moves_without_gradient", "has_state"),
        "adamw": ("moves_without_gradient", "has_state", "decays_by_default"),
    }
    meanings = {"optimizer:sgd": "SGD", "optimizer:adam": "Adam", "optimizer:adamw": "AdamW"}

    @override
    def constructor(self, value: str) -> str:
        return {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[value]

    @override
    def states(self, value: str) -> tuple[str, ...]:
        return ("momentum_buffer",) if value == "sgd" else ("exp_avg", "exp_avg_sq", "step")

    @override
    def features(self, value: str) -> Iterator[str]:
        yield f"optimizer:{value}"

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact or not ("adam" in swarm and tape.chance(60)):
            return spec
        return replace(spec, kind="adamw" if tape.chance(50) else "adam")
