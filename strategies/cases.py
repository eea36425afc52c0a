"""Whole cases: every dimension read from its own tape, within one swarm."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from fuzzshard.case.case import ALL_ENGINES, Case, EngineName
from fuzzshard.case.facts import facts
from fuzzshard.case.flow import Flow
from fuzzshard.case.graph import Block, has_alias, walk
from fuzzshard.case.needs import needs_cpu
from fuzzshard.parts.engines import specs
from fuzzshard.strategies.ddp import ddp
from fuzzshard.strategies.exec_order import diverging
from fuzzshard.strategies.freezing import freezes
from fuzzshard.strategies.fsdp1 import fsdp1
from fuzzshard.strategies.graph import model
from fuzzshard.strategies.groups import group_options
from fuzzshard.strategies.inputs import inputs, widths, with_rank_batches
from fuzzshard.strategies.meshes import mesh
from fuzzshard.strategies.optimizers import optimizer, optimizer_options
from fuzzshard.strategies.options import engines as draw_engines
from fuzzshard.strategies.options import ignored, options, related
from fuzzshard.strategies.precision import in_one_dtype, parameter_dtypes, precision
from fuzzshard.strategies.reuse import ties
from fuzzshard.strategies.schedules import schedule
from fuzzshard.strategies.subject import Subject
from fuzzshard.strategies.swarm import Swarm, swarm
from fuzzshard.strategies.tape import Tape, cut
from fuzzshard.strategies.tensor_parallel import tensor_parallel
from fuzzshard.strategies.wrapping import checkpoints, self_contained, wrap

SIZES = (60, 40, 160, 80, 80, 160)
"""Decisions for the swarm, settings, the model, plans, options and the schedule; few cases need
more.
"""
_EXACT = 25
_DYADIC = 15
"""Percent of all cases, and of those that are not exact."""
_MEMORY = 4
"""Percent of the cases on CUDA, each of which costs four more runs of every engine."""
_DIVERGING = 4
"""Percent of the cases with FSDP1."""


def cases(
    *,
    world_size: int,
    engines: tuple[EngineName, ...] = ALL_ENGINES,
    max_mesh_size: int | None = None,
    cuda: bool = False,
) -> st.SearchStrategy[Case]:
    """Valid cases for a world of ``world_size`` ranks, on meshes of at most ``max_mesh_size`` of
    them.

    Everything drawn is valid by construction; nothing is filtered. A case has some of ``engines``.
    With ``cuda`` some need a world on CUDA devices. A quarter of the cases are *exact*: dyadic
    values and only operations that do not round, so that any order of summation must give equal
    bits.
    """
    largest = min(world_size, max_mesh_size or world_size)
    tapes = st.binary(min_size=sum(SIZES), max_size=sum(SIZES)).map(lambda data: cut(data, SIZES))
    return tapes.map(lambda tapes: _case(tapes, largest, engines, cuda))


def _case(
    tapes: list[Tape], largest_mesh: int, engines: tuple[EngineName, ...], cuda: bool
) -> Case:
    for_swarm, for_settings, for_model, for_plans, for_options, for_schedule = tapes
    allowed = swarm(for_swarm)
    chosen = draw_engines(for_settings, allowed, engines)
    if (
        any(spec.keeps_order for spec in specs(chosen))
        and largest_mesh > 1
        and for_settings.chance(_DIVERGING)
    ):
        return diverging(for_options, largest_mesh)
    case = _experiment(for_settings, for_model, allowed, largest_mesh, cuda=cuda)
    case, flow, trainable = planned(for_plans, allowed, replace(case, engines=chosen))
    case = with_options(for_options, allowed, case, cuda=cuda)
    subject = Subject(case=case, found=facts(case), flow=flow, trainable=trainable)
    case = replace(case, schedule=schedule(for_schedule, allowed, subject))
    case = with_rank_batches(for_settings, allowed, case, subject.found)
    if cuda and needs_cpu(case):
        case = in_one_dtype(case)
    return ddp(for_settings, allowed, related(for_settings, allowed, case))


def _experiment(
    tape: Tape, for_model: Tape, swarm: Swarm, largest_mesh: int, *, cuda: bool
) -> Case:
    """A model and all settings that are independent of how it is wrapped and trained."""
    exact = tape.chance(_EXACT)
    ranks = mesh(tape, swarm, largest_mesh, exact=exact)
    pool = widths(tape, swarm, exact=exact)
    data = inputs(tape, swarm, pool, cuda=cuda)
    root = model(for_model, swarm, pool, data, ranks, exact=exact)
    if any(
        isinstance(module, Block) and module.passing == "dataclass" for _, module in walk(root)
    ):
        data = replace(data, on_host=False)  # engines move no tensors inside a dataclass
    return Case(
        seed=256 * tape.below(256) + tape.below(256),
        model=root,
        inputs=data,
        mesh=ranks,
        schedule=(),
        optimizer=optimizer(tape, swarm, exact=exact),
        dtype="float64" if tape.chance(40) else "float32",
        values="dyadic" if exact or tape.chance(_DYADIC) else "gaussian",
        loss="sum" if tape.chance(30) else "dot" if exact or tape.chance(55) else "mean_square",
    )


def planned(tape: Tape, swarm: Swarm, case: Case) -> tuple[Case, Flow, frozenset[str]]:
    """Wraps, ties, checkpoints and freezes; where gradients flow, and what is trainable at
    first.
    """
    case = replace(case, wrap=wrap(tape, swarm, case.model, facts(case), case.mesh))
    if has_alias(case.model):
        case = self_contained(case)
    case = replace(case, ties=ties(tape, swarm, case))
    found = facts(case)
    flow = Flow(case.model, case.inputs, found, case.ties)
    frozen, trainable = freezes(tape, swarm, found, flow)
    recomputed = checkpoints(tape, swarm, case.model, found, case.wrap)
    return replace(case, checkpoints=recomputed, freezes=frozen), flow, trainable


def with_options(tape: Tape, swarm: Swarm, case: Case, *, cuda: bool) -> Case:
    """What engines are told beyond the wrap plan. Later options are drawn such that they fit
    earlier ones.
    """
    found = facts(case)
    plan = tensor_parallel(tape, case, found)
    ranks = case.mesh if plan else replace(case.mesh, tensor=None)
    case = replace(case, mesh=ranks, tensor_parallel=plan, ignored=ignored(tape, swarm, found))
    found = facts(case)
    case = precision(tape, swarm, case, found)
    case = replace(case, dtypes=parameter_dtypes(tape, swarm, case, found))
    case = fsdp1(tape, swarm, case, found, cuda=cuda)
    case = replace(
        case,
        wrap=group_options(tape, swarm, case, found, cuda=cuda),
        optimizer=optimizer_options(tape, swarm, case, found),
        observe="losses" if "losses_only" in swarm else "everything",
    )
    if cuda and case.observe == "everything" and tape.chance(_MEMORY):
        case = replace(case, observe="memory")
    return options(tape, swarm, case, cuda=cuda)
