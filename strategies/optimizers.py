"""Optimizers, with rates that keep a few steps of a random model finite."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from fuzzshard.case.case import Case, Optimizer
from fuzzshard.case.facts import Facts
from fuzzshard.strategies.freezing import below, pick_target
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
        kind: Literal["adam", "adamw"] = "adamw" if tape.chance(50) else "adam"
        return Optimizer(kind=kind, lr=tape.pick(_ADAM_RATES), weight_decay=weight_decay)
    decimals = tape.pick((0.9, 0.5))
    return Optimizer(
        lr=tape.pick(_SGD_RATES), momentum=decimals if momentum else 0.0, weight_decay=weight_decay
    )


def optimizer_options(tape: Tape, swarm: Swarm, case: Case, found: Facts) -> Optimizer:
    """The case's optimizer with what does not depend on its kind.

    ``foreach`` implementations take no list of DTensors on different meshes, which tensor
    parallelism makes.
    """
    foreach = None
    if case.tensor_parallel:
        foreach = False
    elif "foreach" in swarm:
        foreach = tape.chance(60)
    exclude: tuple[str, ...] = ()
    if "exclude" in swarm:
        everything = frozenset(found.parameters)
        target = pick_target(tape, found, everything, module=tape.chance(50))
        if target is not None and below(everything, target, inside=False):
            exclude = (target,)
    return replace(
        case.optimizer,
        foreach=foreach,
        exclude=exclude,
        post_optim_event="post_optim_event" in swarm,
    )
