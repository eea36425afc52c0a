"""Optimizers."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from fuzzshard.case.case import Case, Optimizer
from fuzzshard.case.facts import Facts
from fuzzshard.parts.options.optimizer import OPTIMIZER_OPTIONS
from fuzzshard.strategies.freezing import below, pick_target
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_BY_PLACE = sorted(OPTIMIZER_OPTIONS, key=lambda option: option.place)


def optimizer(tape: Tape, swarm: Swarm, *, exact: bool) -> Optimizer:
    """``exact``: SGD with powers of two, which rounds nothing."""
    spec = Optimizer()
    for option in _BY_PLACE:
        spec = option.draw(tape, swarm, spec, exact=exact)
    for option in _BY_PLACE:
        spec = option.settle(tape, spec, exact=exact)
    return spec


class Drawing(NamedTuple):
    """What options are drawn for that do not depend on the kind of the optimizer."""

    tape: Tape
    swarm: Swarm
    case: Case
    found: Facts

    def some_parameters(self) -> tuple[str, ...]:
        """A module or a parameter that is not all there is, or nothing."""
        everything = frozenset(self.found.parameters)
        module = self.tape.chance(50)
        target = pick_target(self.tape, self.found, everything, module=module)
        left = target is not None and below(everything, target, inside=False)
        return (target,) if target is not None and left else ()


def optimizer_options(tape: Tape, swarm: Swarm, case: Case, found: Facts) -> Optimizer:
    """The case's optimizer with what does not depend on its kind."""
    drawing = Drawing(tape, swarm, case, found)
    late = (option for option in OPTIMIZER_OPTIONS if option.extension)
    spec = replace(case.optimizer, **{option.name: option.value(drawing) for option in late})
    spec = spec.for_matrices(found.parameters) if spec.does("steps_matrices") else spec
    spec = spec.leaving_out(spec.set_apart)
    if not (spec.does("scales") and spec.left_out):
        return spec
    # what no optimizer gets keeps gradients with a scale
    return spec.unscaled() if spec.does("steps_matrices") else spec.leaving_out(())
