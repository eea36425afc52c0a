"""Optimizers, with rates that keep a few steps of a random model finite."""

from __future__ import annotations

from fuzzshard.case.case import Optimizer
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_POWERS_OF_TWO = (0.0625, 0.03125, 0.125)
_SGD_RATES = (0.03125, 0.01, 0.02, 0.05)
_ADAM_RATES = (0.01, 0.015625, 0.003)


def optimizer(tape: Tape, swarm: Swarm, *, exact: bool) -> Optimizer:
    """``exact``: SGD with powers of two, which rounds nothing."""
    momentum = "momentum" in swarm and tape.chance(80)
    if exact:
        return Optimizer(lr=tape.pick(_POWERS_OF_TWO), momentum=0.5 if momentum else 0.0)
    weight_decay = 0.0
    if "weight_decay" in swarm and tape.chance(60):
        weight_decay = tape.pick((0.125, 0.01))
    if "adam" in swarm and tape.chance(60):
        kind = "adamw" if tape.chance(50) else "adam"
        return Optimizer(kind=kind, lr=tape.pick(_ADAM_RATES), weight_decay=weight_decay)  # type: ignore[arg-type]
    decimals = tape.pick((0.9, 0.5))
    return Optimizer(
        lr=tape.pick(_SGD_RATES), momentum=decimals if momentum else 0.0, weight_decay=weight_decay
    )
