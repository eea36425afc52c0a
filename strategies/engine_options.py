"""Options of the engines ``ddp``, ``replicate`` and ``fsdp1``, and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fuzzshard.analysis.arrivals import Replicated
from fuzzshard.analysis.checker import Checker
from fuzzshard.analysis.exclusions import exclusion
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.case import Case, Optimizer
from fuzzshard.case.paths import is_within
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines import specs
from fuzzshard.parts.engines.ddp import DistributedDataParallel
from fuzzshard.parts.engines.fsdp1 import FullyShardedDataParallel
from fuzzshard.parts.ops import TrainUnevenly
from fuzzshard.parts.option import Option
from fuzzshard.parts.options.ddp import DDP, DDP_OPTIONS
from fuzzshard.parts.options.fsdp1 import FSDP1, FSDP1_OPTIONS, draw_policy
from fuzzshard.parts.options.optimizer import OPTIMIZER_OPTIONS
from fuzzshard.strategies.freezing import below, pick_target
from fuzzshard.strategies.precision import computes
from fuzzshard.strategies.swarm import PRECISION, Swarm, may_cast
from fuzzshard.strategies.tape import Tape

_ALONE = 40
"""Percent of the cases with options that have one of them."""
_ONE = 20
"""Percent of the other cases of DDP, which have one."""
_ENDING_APART = 12
"""Percent of the cases that DDP runs and that have a step."""


def ddp(tape: Tape, swarm: Swarm, case: Case, *, uneven: bool = True) -> Case:
    """Return the finished ``case`` with options of DDP, if that is one of its engines, and maybe
    with ``uneven`` iterations.

    What DDP does with buffers, no other engine does: where there are any, none is judged then.
    """
    ours = [
        spec for spec in specs(case.engines) if spec.options == DistributedDataParallel.options
    ]
    if not ours:
        return case
    even, case = case, _ending_apart(tape, case, ours) if uneven else case
    ours = [spec for spec in ours if spec.name in case.engines]
    seen = Replicated(case, by_replicate=not any(spec.wrapper for spec in ours))
    drawn = [
        option
        for option in sorted(DDP_OPTIONS, key=lambda option: option.place)
        if not (option.of_wrapper and seen.by_replicate)
    ]
    always = [option for option in drawn if option.in_every_case]
    case = replace(case, ddp=DDP(**{o.name: o.draw(tape, seen) for o in always}))
    if case.ddp.buffers != "local" and tape.chance(50):  # DDP copies buffers when it is made, too
        case = replace(case, ddp=replace(case.ddp, initial="first_rank"))
    seen = Replicated(case, seen.by_replicate)
    several = "ddp_options" in swarm or case.schedule != even.schedule
    if several or tape.chance(_ONE):
        values = [(o, o.draw(tape, seen)) for o in drawn if not o.in_every_case]
        told = [(option, value) for option, value in values if value != option.default]
        if told and (not several or tape.chance(_ALONE)):
            told = [tape.pick(told)]
        for option, value in told:
            case = _told(case, ours, option, value)
    if case.ddp.averages_in_half and tape.chance(60):
        case = _scaled_high(case, ours)
    if case.ddp.broadcasts_buffers and seen.updates_buffers:
        return replace(case, engines=(DistributedDataParallel.name,))
    return case


def _ending_apart(tape: Tape, case: Case, ours: Sequence[EngineSpec]) -> Case:
    """Return the case with uneven iterations after one of its steps, rarely, and alone with those
    of ``ours`` that run them.
    """
    places = [index for index, op in enumerate(case.schedule, 1) if op.updates]
    if not places or not tape.chance(_ENDING_APART):
        return case
    place, at = tape.pick(places), Checker(case, inferred(case))
    before = case.schedule[:place]
    uneven = TrainUnevenly.after(before, tape)
    schedule = [op for op in (*before, uneven, *case.schedule[place:]) if at.accepts(op)]
    told = replace(case, schedule=tuple(schedule))
    run = tuple(spec.name for spec in ours if not exclusion(told, spec.name))
    return replace(told, engines=run) if uneven in schedule and run else case


def _scaled_high(case: Case, ours: Sequence[EngineSpec]) -> Case:
    """Return the case with losses that are scaled as by default, where it and ``ours`` let it."""
    scaled = replace(case, optimizer=replace(case.optimizer, grad_scaler="default"))
    runs = is_valid(scaled) and not any(exclusion(scaled, spec.name) for spec in ours)
    return scaled if runs else case


def _told(case: Case, ours: Sequence[EngineSpec], option: Option, value: object) -> Case:
    """Return the case with an option of some engines, unless that keeps one of them from running
    it, as its table says.
    """
    part = getattr(case, ours[0].options)
    told = replace(case, **{ours[0].options: replace(part, **{option.name: value})})
    excluded = value != option.default and any(
        exclusion(told, spec.name) and not exclusion(case, spec.name) for spec in ours
    )
    return case if excluded else told


class DrawingFSDP1(NamedTuple):
    """What options are drawn for; ``uniform``: no unit has frozen and trainable parameters."""

    tape: Tape
    case: Case
    uniform: bool
    cuda: bool


def fsdp1(tape: Tape, swarm: Swarm, case: Case, found: Inferred, *, cuda: bool) -> Case:
    """Return the case with options of FSDP1, if that is one of its engines.

    Its mixed precision replaces that of the wrap groups, so no other engine is judged then.
    """
    if FullyShardedDataParallel.name not in case.engines:
        return case
    uniform = "toggle" not in swarm and not _mixes_frozen(case, found)
    drawn = sorted(FSDP1_OPTIONS, key=lambda option: option.place)
    case, ours = replace(case, fsdp1=FSDP1()), specs((FullyShardedDataParallel.name,))
    for further in (False, True):
        if further and tape.chance(30):
            break
        for option in (option for option in drawn if option.further is further):
            value = option.draw(DrawingFSDP1(tape, case, uniform, cuda))
            case = _told(case, ours, option, value)
    if PRECISION not in swarm or not _takes_policy(case) or not tape.chance(90):
        return case
    policy = draw_policy(tape, buffers=found.has_buffers)
    groups = tuple(replace(group, precision=None) for group in case.wrap)
    alone = replace(
        case,
        fsdp1=replace(case.fsdp1, precision=policy),
        engines=(FullyShardedDataParallel.name,),
        wrap=groups,
        dtypes=(),
    )
    return alone if computes(alone, found, casts=may_cast(swarm)) else case


def _takes_policy(case: Case) -> bool:
    """Return whether FSDP1 may run with a policy of its own, and so alone."""
    flat = not case.optimizer.combines_elements
    return case.root_is_wrapped and flat and not case.ignored


def _mixes_frozen(case: Case, found: Inferred) -> bool:
    """Return whether frozen and trainable parameters share a group, which flattening refuses."""
    kinds: dict[int | None, set[bool]] = {}
    for fqn, owner in found.owners.items():
        kinds.setdefault(owner, set()).add(any(is_within(fqn, f.target) for f in case.freezes))
    return any(len(kind) > 1 for kind in kinds.values())


_BY_PLACE = sorted(OPTIMIZER_OPTIONS, key=lambda option: option.place)


def optimizer(tape: Tape, swarm: Swarm, *, exact: bool) -> Optimizer:
    """Return ``exact``: SGD with powers of two, which rounds nothing."""
    spec = Optimizer()
    for option in _BY_PLACE:
        spec = option.draw(tape, swarm, spec, exact=exact)
    for option in _BY_PLACE:
        spec = option.settle(tape, spec, exact=exact)
    return spec


class DrawingOptimizer(NamedTuple):
    """What options are drawn for that do not depend on the kind of the optimizer."""

    tape: Tape
    swarm: Swarm
    case: Case
    found: Inferred
    cuda: bool

    def some_parameters(self) -> tuple[str, ...]:
        """Return a module or a parameter that is not all there is, or nothing."""
        everything = frozenset(self.found.parameters)
        module = self.tape.chance(50)
        target = pick_target(self.tape, self.found, everything, module=module)
        left = target is not None and below(everything, target, inside=False)
        return (target,) if target is not None and left else ()


def optimizer_options(
    tape: Tape, swarm: Swarm, case: Case, found: Inferred, *, cuda: bool
) -> Optimizer:
    """Draw the options of the optimizer that every kind of optimizer has."""
    drawing = DrawingOptimizer(tape, swarm, case, found, cuda)
    late = (option for option in OPTIMIZER_OPTIONS if option.extension)
    spec = replace(case.optimizer, **{option.name: option.value(drawing) for option in late})
    spec = spec.for_matrices(found.parameters) if spec.steps_matrices else spec
    spec = spec.leaving_out(spec.exclude).fitting()
    if not (spec.grad_scaler and spec.left_out):
        return spec
    # what no optimizer gets keeps gradients with a scale
    return spec.unscaled() if spec.steps_matrices else spec.leaving_out(())
