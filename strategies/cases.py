"""Whole cases: every dimension drawn from its own tape, within one swarm."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from fuzzshard.case.case import ENGINES, Case, EngineName, Mesh
from fuzzshard.case.facts import facts
from fuzzshard.strategies.flow import Flow
from fuzzshard.strategies.freezing import freezes
from fuzzshard.strategies.graph import model
from fuzzshard.strategies.inputs import inputs, widths
from fuzzshard.strategies.meshes import mesh
from fuzzshard.strategies.optimizers import optimizer
from fuzzshard.strategies.reuse import ties
from fuzzshard.strategies.schedules import Subject, schedule
from fuzzshard.strategies.swarm import swarms
from fuzzshard.strategies.tape import Tape, tapes
from fuzzshard.strategies.wrapping import checkpoints, wrap

_SETTINGS, _MODEL, _PLANS, _SCHEDULE = tapes(40), tapes(120), tapes(64), tapes(100)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    world_size: int,
    engines: tuple[EngineName, ...] = ENGINES,
    max_mesh_size: int | None = None,
) -> Case:
    """Valid cases for a world of ``world_size`` ranks, on meshes of at most ``max_mesh_size`` of them.

    Everything drawn is valid by construction; nothing is filtered. About a quarter of the cases are
    *exact*: dyadic values and only operations that do not round, so that any order of summation
    must give equal bits.
    """
    swarm = draw(swarms())
    tape: Tape = draw(_SETTINGS)
    values, exact = tape.weighted((((("gaussian", False)), 13), (("dyadic", False), 2), (("dyadic", True), 5)))
    ranks = mesh(tape, swarm, min(world_size, max_mesh_size or world_size), exact=exact)
    losses = ("dot", "sum") if exact else ("dot", "sum", "mean_square")
    pool = widths(tape, swarm)
    data = inputs(tape, swarm, pool)

    root = model(draw(_MODEL), swarm, pool, data, exact=exact)
    case = Case(
        seed=256 * tape.below(256) + tape.below(256),
        model=root,
        inputs=data,
        mesh=ranks,
        schedule=(),
        optimizer=optimizer(tape, swarm, exact=exact),
        dtype="float64" if tape.chance(40) else "float32",
        values=values,  # type: ignore[arg-type]
        loss=tape.pick(losses),  # type: ignore[arg-type]
        engines=engines,
    )

    plans: Tape = draw(_PLANS)
    untied = facts(case)
    groups = wrap(plans, swarm, root, untied, ranks)
    tied = ties(plans, swarm, untied, groups)
    case = msgspec.structs.replace(case, wrap=groups, ties=tied)
    found = facts(case)
    recomputed = checkpoints(plans, swarm, root, found, groups)
    flow = Flow(root, data, found, tied)
    frozen, trainable = freezes(plans, swarm, found, flow)
    subject = Subject(
        found=found,
        flow=flow,
        wrap=groups,
        trainable=trainable,
        hsdp=ranks.replicate is not None,
        checkpointed=bool(recomputed),
    )
    ops = schedule(draw(_SCHEDULE), swarm, subject)
    return msgspec.structs.replace(case, checkpoints=recomputed, freezes=frozen, schedule=ops)
