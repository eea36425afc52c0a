"""Which optimizer it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.option import Tape
from fuzzshard.parts.options.optimizer import Optimizer, OptimizerOption

_CLASSES = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "asgd": "ASGD",
}
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_STATES = {
    "sgd": ("momentum_buffer",),
    "adam": _MOMENTS,
    "adamw": _MOMENTS,
    "rmsprop": ("square_avg", "step"),
    "adadelta": ("square_avg", "acc_delta", "step"),
    "adamax": ("exp_avg", "exp_inf", "step"),
    "nadam": (*_MOMENTS, "mu_product"),
    "radam": _MOMENTS,
    "asgd": ("ax", "eta", "mu", "step"),
}
_RARER = ("rmsprop", "adadelta", "adamax", "nadam", "radam", "asgd")
"""Like Adam they update each element by itself, which sharding must not change."""


class Kind(OptimizerOption):
    """A class of ``torch.optim``."""

    name, place, choices = "kind", 2, ("adam",)
    traits = {
        **dict.fromkeys(("adam", *_RARER), ("moves_without_gradient", "has_state")),
        "sgd": ("takes_momentum",),
        "adamw": ("moves_without_gradient", "has_state", "decays_by_default"),
    }
    meanings = {f"optimizer:{kind}": name for kind, name in _CLASSES.items()}

    @override
    def constructor(self, value: str) -> str:
        return _CLASSES[value]

    @override
    def states(self, value: str) -> tuple[str, ...]:
        return _STATES[value]

    @override
    def features(self, value: str) -> Iterator[str]:
        yield f"optimizer:{value}"

    @override
    def draw(self, tape: Tape, swarm: Any, spec: Optimizer, *, exact: bool) -> Optimizer:
        if exact or not ("adam" in swarm and tape.chance(75)):
            return spec
        if tape.chance(50):
            return replace(spec, kind=tape.pick(_RARER))
        return replace(spec, kind="adamw" if tape.chance(50) else "adam")
