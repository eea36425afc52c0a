"""Options of the engine ``fsdp1``."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.paths import is_within
from fuzzshard.parts.engines.fsdp1 import FullyShardedDataParallel
from fuzzshard.parts.options.fsdp1 import FSDP1, FSDP1_OPTIONS, draw_policy
from fuzzshard.strategies.precision import computes
from fuzzshard.strategies.swarm import PRECISION, Swarm, may_cast
from fuzzshard.strategies.tape import Tape


class DrawingFSDP1(NamedTuple):
    """What an option is drawn for. ``uniform``: no unit has frozen and trainable parameters."""

    tape: Tape
    case: Case
    uniform: bool
    cuda: bool


def fsdp1(tape: Tape, swarm: Swarm, case: Case, found: Facts, *, cuda: bool) -> Case:
    """The case with options of FSDP1, if that is one of its engines.

    Its mixed precision replaces that of the wrap groups, so no other engine is judged then.
    """
    if FullyShardedDataParallel.name not in case.engines:
        return case
    uniform = "toggle" not in swarm and not _mixes_frozen(case, found)
    drawn = sorted(FSDP1_OPTIONS, key=lambda option: option.place)
    case = replace(case, fsdp1=FSDP1())
    for further in (False, True):
        if further and tape.chance(50):
            break
        for option in (option for option in drawn if option.further is further):
            value = option.draw(DrawingFSDP1(tape, case, uniform, cuda))
            case = replace(case, fsdp1=replace(case.fsdp1, **{option.name: value}))
    if PRECISION not in swarm or not _takes_policy(case, found) or not tape.chance(90):
        return case
    groups = tuple(group.with_policy(None) for group in case.wrap)
    alone = replace(
        case,
        fsdp1=case.fsdp1.with_policy(draw_policy(tape)),
        engines=(FullyShardedDataParallel.name,),
        wrap=groups,
        dtypes=(),
    )
    return alone if computes(alone, found, casts=may_cast(swarm)) else case


def _takes_policy(case: Case, found: Facts) -> bool:
    """Whether FSDP1 may run with a policy of its own, and so alone."""
    flat = not case.optimizer.does("combines_elements")
    return case.root_is_wrapped and flat and not (found.hides_buffers or case.ignored)


def _mixes_frozen(case: Case, found: Facts) -> bool:
    """Whether frozen and trainable parameters share a group, which flattening refuses."""
    kinds: dict[int | None, set[bool]] = {}
    for fqn, owner in found.owners.items():
        kinds.setdefault(owner, set()).add(any(is_within(fqn, f.target) for f in case.freezes))
    return any(len(kind) > 1 for kind in kinds.values())
