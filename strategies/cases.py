"""Whole cases: every dimension read from its own tape, within one swarm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from fuzzshard.analysis.attention import without_kernels
from fuzzshard.analysis.check_options import fits_options
from fuzzshard.analysis.checker import Checker
from fuzzshard.analysis.dtypes import (
    cuda_scales_gradients,
    cuda_steps_take_gradients,
)
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.needs import needs_cpu
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.case import Case, EngineName, Freeze, Inputs, Mesh, Tie, WrapGroup
from fuzzshard.case.graph import Block, has_alias, walk
from fuzzshard.parts.engines import specs
from fuzzshard.parts.losses import DEFAULT as DEFAULT_LOSS
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Op
from fuzzshard.strategies.engine_options import ddp, fsdp1, optimizer, optimizer_options
from fuzzshard.strategies.exec_order import diverging
from fuzzshard.strategies.freezing import freezes
from fuzzshard.strategies.graph import model, ties
from fuzzshard.strategies.groups import group_options
from fuzzshard.strategies.inputs import differentiable, fitting, inputs, widths, with_rank_batches
from fuzzshard.strategies.meshes import made, mesh
from fuzzshard.strategies.moments import MODES
from fuzzshard.strategies.options import engines as draw_engines
from fuzzshard.strategies.options import (
    ignored,
    of_variants,
    options,
    pipelining,
    that_run,
    whole_after_forward,
)
from fuzzshard.strategies.precision import in_one_dtype, parameter_dtypes, precision
from fuzzshard.strategies.schedules import schedule
from fuzzshard.strategies.swarm import (
    NUM_BYTES,
    PRECISION,
    Swarm,
    shards_experts,
    shards_positions,
    with_choice,
    with_engines,
)
from fuzzshard.strategies.tape import Tape
from fuzzshard.strategies.tensor_parallel import tensor_parallel
from fuzzshard.strategies.trained_model import TrainedModel
from fuzzshard.strategies.wrapping import checkpoints, experts_apart, self_contained, wrap

SIZES = (max(60, NUM_BYTES), 40, 160, 80, 80, 160)
"""Decisions for the swarm, settings, the model, plans, options and the schedule; few cases need
more, and no swarm does: it would never make the choices that come last.
"""
_EXACT = 25
_DYADIC = 15
"""Percent of all cases, and of those that are not exact."""
_APART = 75
"""Percent of the exact cases with mixed precision, where few sums of dyadic values are exact."""
_MEMORY, _HOST_MEMORY = 4, 1
"""Percent of the cases on CUDA, and of the others; each costs four more runs of every engine."""
_RACES = 5
"""Percent of the other cases on CUDA, until its cost there is measured."""
_SHARED_LOSS = 25
"""Percent of the cases with tensor parallelism, whose loss its ranks share."""
_DIVERGING = 8
"""Percent of the cases with FSDP1."""


@dataclasses.dataclass(frozen=True)
class Given:
    """The parts of a case that come from elsewhere; each is asked for where it would be drawn."""

    mesh: Callable[[], Mesh] | None = None
    inputs: Callable[[], Inputs] | None = None
    model: Callable[[], Block] | None = None
    wrap: Callable[[Case], tuple[WrapGroup, ...]] | None = None
    ties: Callable[[Case], tuple[Tie, ...]] | None = None
    freezes: Callable[[Case], tuple[Freeze, ...]] | None = None
    schedule: Callable[[Case], tuple[Op, ...]] | None = None

    @property
    def nothing_but_mesh(self) -> bool:
        """Whether all the rest is drawn."""
        return dataclasses.replace(self, mesh=None) == NOTHING


NOTHING = Given()


def draw_case(
    tapes: Sequence[Tape],
    allowed: Swarm,
    largest_mesh: int,
    engines: tuple[EngineName, ...],
    *,
    cuda: bool,
    given: Given = NOTHING,
) -> Case:
    """Return a case, valid as far as nothing is given, on ``largest_mesh`` ranks at most.

    A case has some of ``engines``, all of which run it; none where none would. With ``cuda`` some
    need a world on CUDA devices. A quarter of the cases are *exact*: dyadic values and only
    operations that do not round, so that any order of summation must give equal bits.
    """
    _, for_settings, for_model, for_plans, for_options, for_schedule = tapes
    ranks = given.mesh() if given.mesh else None
    if ranks and ranks.pipeline is None:
        engines = tuple(spec.name for spec in specs(engines) if not spec.in_stages) or engines
    chosen = draw_engines(for_settings, allowed, engines)
    if isinstance(allowed, frozenset):
        allowed = with_engines(allowed, chosen)
        if cuda and shards_positions(allowed):  # kernels of half precision have a finer one
            allowed = with_choice(allowed, PRECISION)
    if ranks:  # the family below is for meshes of one axis
        largest_mesh = ranks.shard if ranks == Mesh(shard=ranks.shard) else 1
    drawn = given.nothing_but_mesh and largest_mesh > 1
    has_units = any(spec.has_units for spec in specs(chosen))
    if has_units and drawn and for_settings.chance(_DIVERGING):
        case = for_options.within(diverging, for_options, largest_mesh)
        return replace(case, mesh=ranks or case.mesh)
    case = _experiment(for_settings, for_model, allowed, ranks or largest_mesh, given, cuda=cuda)
    case = replace(case, engines=chosen)
    case = for_plans.within(planned, for_plans, allowed, case, given)
    case = for_options.within(with_options, for_options, allowed, case, cuda=cuda)
    if case.optimizer.grad_scaler and not fits_options(case, inferred(case)):
        case = replace(case, optimizer=case.optimizer.unscaled())
    trained = TrainedModel.of(case)
    ops = (
        given.schedule(case)
        if given.schedule
        else for_schedule.within(schedule, for_schedule, allowed, trained)
    )
    case = replace(case, schedule=ops)
    case = for_settings.within(with_rank_batches, for_settings, allowed, case, trained.found)
    case = _for_cuda(case) if cuda else case
    case = that_run(case, engines)
    case = without_kernels(case) if cuda else case  # of an engine that has joined
    late = _with_late_loss(for_settings, allowed, case, given, cuda=cuda)
    case = case if late is case else that_run(late, late.engines)
    told = for_settings.within(ddp, for_settings, allowed, case, uneven=not given.schedule)
    case = case if told == case else that_run(told, told.engines)
    return case if ranks else replace(case, mesh=made(for_settings, case.mesh))


def _for_cuda(case: Case) -> Case:
    """``case`` with what CUDA ranks can run of it."""
    case = without_kernels(_with_taken_gradients(case))
    if needs_cpu(case):
        case = without_kernels(in_one_dtype(case))
    if needs_cpu(case):  # an LSTM is trained in evaluation mode
        case = replace(
            case, schedule=tuple(op for op in case.schedule if op not in MODES["in_evaluation"])
        )
    return case


def _unscaled(case: Case) -> Case:
    """``case`` without a scaler of losses."""
    case = replace(case, optimizer=case.optimizer.unscaled())
    at = Checker(case, inferred(case))
    return replace(case, schedule=tuple(op for op in case.schedule if at.accepts(op)))


def _with_taken_gradients(case: Case) -> Case:
    """``case`` with gradients that steps and a ``GradScaler`` take on CUDA."""
    found = inferred(case)
    if not cuda_scales_gradients(case, found):
        case = _unscaled(case)
    in_turn = replace(case, optimizer=case.optimizer.in_turn())
    if not cuda_steps_take_gradients(in_turn, found):  # the second optimizer has no such option
        return replace(case, schedule=tuple(op for op in case.schedule if not op.retypes))
    return case if cuda_steps_take_gradients(case, found) else in_turn


def _experiment(
    tape: Tape, for_model: Tape, swarm: Swarm, on: Mesh | int, given: Given, *, cuda: bool
) -> Case:
    """Return a model and all settings that are independent of how it is wrapped and trained.

    It is for the mesh ``on``, or for some mesh of at most as many ranks.
    """
    exact = tape.chance(_EXACT) and given.nothing_but_mesh and not shards_positions(swarm)
    ranks = mesh(tape, swarm, on, exact=exact) if isinstance(on, int) else on
    exact = exact and ranks.data_size & (ranks.data_size - 1) == 0
    pool = widths(tape, swarm, exact=exact)
    data = given.inputs() if given.inputs else inputs(tape, swarm, pool, ranks, cuda=cuda)
    if given.model:
        root = given.model()
        data = data if given.inputs else fitting(root, data)
    else:
        root = for_model.within(model, for_model, swarm, pool, data, ranks, exact=exact)
    if any(
        isinstance(module, Block) and module.passing == "dataclass" for _, module in walk(root)
    ):
        data = replace(data, on_host=False)  # engines move no tensors inside a dataclass
    apart = exact and PRECISION in swarm and tape.chance(_APART)
    return Case(
        seed=256 * tape.below(256) + tape.below(256),
        model=root,
        inputs=data,
        mesh=ranks,
        schedule=(),
        optimizer=optimizer(tape, swarm, exact=exact),
        dtype="float64" if tape.chance(40) else "float32",
        values="apart" if apart else "dyadic" if exact or tape.chance(_DYADIC) else "gaussian",
        loss=DEFAULT_LOSS if apart else _loss(tape, exact=exact),
    )


def _loss(tape: Tape, *, exact: bool) -> str:
    """``exact``: one that rounds nothing."""
    losses = [loss for loss in LOSSES.values() if not (loss.extension or loss.late_percent)]
    losses = [loss for loss in losses if not loss.context]
    *losses, last = (loss for loss in losses if loss.is_exact or not exact)
    chosen = (loss for loss in losses if tape.chance(loss.percent, simpler=loss.is_simpler))
    return next(chosen, last).name


def _with_late_loss(tape: Tape, swarm: Swarm, case: Case, given: Given, *, cuda: bool) -> Case:
    """``case`` with a loss that few cases can have, if the swarm wants that and it is one.

    It has the engines alone that run with it then.
    """
    for loss in LOSSES.values():
        made = {f"loss:{loss.name}", "input:requires_grad"} if loss.differentiates_twice else set()
        runs = any(made.isdisjoint(spec.excludes) for spec in specs(case.engines))
        wanted = loss.extension and loss.extension.name in swarm
        if runs and (wanted or (loss.late_percent and tape.chance(loss.late_percent))):
            changed = replace(case, loss=loss.name)
            if loss.differentiates_twice and not given.inputs:
                changed = replace(changed, inputs=differentiable(case.inputs))
            runs = is_valid(changed) and not (cuda and needs_cpu(changed))
            case = changed if runs else case
    return case


def planned(tape: Tape, swarm: Swarm, case: Case, given: Given = NOTHING) -> Case:
    """Return ``case`` with wrap groups, ties, checkpoints and freezes."""
    root = case.model
    groups = given.wrap(case) if given.wrap else wrap(tape, swarm, root, inferred(case), case.mesh)
    case = replace(case, wrap=groups)
    if shards_experts(swarm) and not given.wrap:
        case = experts_apart(tape, case)
    if has_alias(root) and not given.wrap:
        case = self_contained(case)
    case = replace(case, ties=given.ties(case) if given.ties else ties(tape, swarm, case))
    frozen = given.freezes(case) if given.freezes else freezes(tape, swarm, case)
    recomputed = checkpoints(tape, swarm, root, inferred(case), case.wrap)
    return replace(case, checkpoints=recomputed, freezes=frozen)


def with_options(tape: Tape, swarm: Swarm, case: Case, *, cuda: bool) -> Case:
    """Return what engines are told beyond the wrap plan. Later options are drawn such that they
    fit earlier ones.
    """
    found = inferred(case)
    plan = tensor_parallel(tape, case, found)
    ranks = case.mesh
    if not plan and ranks.tensor:  # there is nothing to split
        ranks = replace(ranks, tensor=None, shard=ranks.shard * ranks.tensor)
    if plan and case.values == "gaussian" and tape.chance(_SHARED_LOSS):
        case = replace(case, loss=tape.pick([n for n, loss in LOSSES.items() if loss.context]))
    case = ignored(tape, swarm, replace(case, mesh=ranks, tensor_parallel=plan), found)
    found = inferred(case)
    case = precision(tape, swarm, case, found)
    case = replace(case, dtypes=parameter_dtypes(tape, swarm, case, found))
    case = fsdp1(tape, swarm, case, found, cuda=cuda)
    case = replace(
        case,
        wrap=group_options(tape, swarm, case, found, cuda=cuda),
        optimizer=optimizer_options(tape, swarm, case, found, cuda=cuda),
        observe="losses" if "losses_only" in swarm else "everything",
    )
    if case.observe == "everything" and tape.chance(_MEMORY if cuda else _HOST_MEMORY):
        case = replace(case, observe="memory")
    elif cuda and case.observe == "everything" and tape.chance(_RACES):
        case = replace(case, observe="races")
    case = whole_after_forward(options(tape, swarm, case, cuda=cuda))
    return of_variants(tape, pipelining(tape, case))
