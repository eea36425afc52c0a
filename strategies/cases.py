"""Whole cases: every dimension read from its own tape, within one swarm."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from fuzzshard.case.case import ENGINES, Case, EngineName
from fuzzshard.case.facts import facts
from fuzzshard.strategies.flow import Flow
from fuzzshard.strategies.freezing import freezes
from fuzzshard.strategies.graph import model
from fuzzshard.strategies.inputs import inputs, widths
from fuzzshard.strategies.meshes import mesh
from fuzzshard.strategies.optimizers import optimizer
from fuzzshard.strategies.reuse import ties
from fuzzshard.strategies.schedules import Subject, schedule
from fuzzshard.strategies.swarm import Swarm, swarm
from fuzzshard.strategies.tape import Tape, cut
from fuzzshard.strategies.wrapping import checkpoints, has_alias, self_contained, wrap

_SIZES = (20, 40, 140, 80, 140)
"""Decisions for the swarm, the settings, the model, the plans and the schedule; few cases need more."""
_EXACT = 25
_DYADIC = 15
"""Percent of all cases, and of those that are not exact."""


def cases(
    *, world_size: int, engines: tuple[EngineName, ...] = ENGINES, max_mesh_size: int | None = None
) -> st.SearchStrategy[Case]:
    """Valid cases for a world of ``world_size`` ranks, on meshes of at most ``max_mesh_size`` of them.

    Everything drawn is valid by construction; nothing is filtered. A quarter of the cases are
    *exact*: dyadic values and only operations that do not round, so that any order of summation
    must give equal bits.
    """
    largest = min(world_size, max_mesh_size or world_size)
    tapes = st.binary(min_size=sum(_SIZES), max_size=sum(_SIZES)).map(lambda data: cut(data, _SIZES))
    return tapes.map(lambda tapes: _case(tapes, largest, engines))


def _case(tapes: list[Tape], largest_mesh: int, engines: tuple[EngineName, ...]) -> Case:
    for_swarm, for_settings, for_model, for_plans, for_schedule = tapes
    allowed = swarm(for_swarm)
    case = _experiment(for_settings, for_model, allowed, largest_mesh, engines)
    case, subject = _planned(for_plans, allowed, case)
    return replace(case, schedule=schedule(for_schedule, allowed, subject))


def _experiment(
    tape: Tape, for_model: Tape, swarm: Swarm, largest_mesh: int, engines: tuple[EngineName, ...]
) -> Case:
    """A model and all settings that are independent of how it is wrapped and trained."""
    exact = tape.chance(_EXACT)
    ranks = mesh(tape, swarm, largest_mesh, exact=exact)
    pool = widths(tape, swarm, exact=exact)
    data = inputs(tape, swarm, pool)
    return Case(
        seed=256 * tape.below(256) + tape.below(256),
        model=model(for_model, swarm, pool, data, exact=exact),
        inputs=data,
        mesh=ranks,
        schedule=(),
        optimizer=optimizer(tape, swarm, exact=exact),
        dtype="float64" if tape.chance(40) else "float32",
        values="dyadic" if exact or tape.chance(_DYADIC) else "gaussian",
        loss="sum" if tape.chance(30) else "dot" if exact or tape.chance(55) else "mean_square",
        engines=engines,
    )


def _planned(tape: Tape, swarm: Swarm, case: Case) -> tuple[Case, Subject]:
    """Wraps, ties, checkpoints and freezes; what a schedule needs to know of the result."""
    case = replace(case, wrap=wrap(tape, swarm, case.model, facts(case), case.mesh))
    if has_alias(case.model):
        case = self_contained(case)
    case = replace(case, ties=ties(tape, swarm, case))
    found = facts(case)
    flow = Flow(case.model, case.inputs, found, case.ties)
    frozen, trainable = freezes(tape, swarm, found, flow)
    recomputed = checkpoints(tape, swarm, case.model, found, case.wrap)
    case = replace(case, checkpoints=recomputed, freezes=frozen)
    return case, Subject(case=case, found=found, flow=flow, trainable=trainable)
