"""The strategies for anybody's ``@given``.

They draw values, which print as code: with ``from fuzzshard.case import *`` what Hypothesis prints
for a failing test can be pasted into ``@example(...)``. They shrink under Hypothesis by itself:
every decision is a draw whose lowest value leaves something out.

What one of them is given is a value, or a strategy for it, or a function that returns such a
strategy for what was drawn before: ``cases(wrap=wrapping_plans)`` calls ``wrapping_plans(graph)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec.structs import replace

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.oddities import with_first_uses
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.case import (
    ALL_ENGINES,
    Case,
    EngineName,
    Freeze,
    Inputs,
    Mesh,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Block, has_alias
from fuzzshard.parts.op import Op
from fuzzshard.strategies.cases import SIZES, Given, draw_case
from fuzzshard.strategies.freezing import freezes as draw_freezes
from fuzzshard.strategies.graph import model as draw_model
from fuzzshard.strategies.graph import ties as draw_ties
from fuzzshard.strategies.inputs import fitting, widths
from fuzzshard.strategies.inputs import inputs as draw_inputs
from fuzzshard.strategies.meshes import mesh as draw_mesh
from fuzzshard.strategies.schedules import schedule as draw_schedule
from fuzzshard.strategies.swarm import IMAGES, Kept, Swarm, with_choice
from fuzzshard.strategies.swarm import swarm as draw_swarm
from fuzzshard.strategies.tape import DrawnTape
from fuzzshard.strategies.trained_model import TrainedModel
from fuzzshard.strategies.wrapping import self_contained, wrap

T = TypeVar("T")

_MAX_RANKS = 4


@st.composite
def meshes(draw: DrawFn, *, max_ranks: int = _MAX_RANKS) -> Mesh:
    """Draw meshes of at most ``max_ranks`` ranks, with all axes that fit."""
    tape, swarm = _begin(draw)
    return draw_mesh(tape, swarm, max_ranks, exact=False)


@st.composite
def module_graphs(draw: DrawFn) -> Block:
    """Draw module graphs: models of a few layers, nested, with residuals, reuse and unused parts.

    Their float inputs are of one width, whatever that is: ``cases`` finds inputs that fit.
    """
    tape, swarm = _begin(draw)
    pool = widths(tape, swarm, exact=False)
    mesh = Mesh(shard=2)
    data = draw_inputs(tape, swarm, pool, mesh, cuda=False)
    size = data.tensors[0].size
    floats = (replace(t, size=size) if t.kind == "float" else t for t in data.tensors)
    data = replace(data, tensors=tuple(floats))
    return draw_model(tape, swarm, pool, data, mesh, exact=False)


@st.composite
def wrapping_plans(draw: DrawFn, of: Block | Case, /) -> tuple[WrapGroup, ...]:
    """Wrap plans for a graph, or for the graph and the mesh of a case: the groups, bottom-up."""
    tape, swarm = _begin(draw)
    case = _case_of(of)
    case = replace(case, wrap=wrap(tape, swarm, case.model, inferred(case), case.mesh))
    return self_contained(case).wrap if has_alias(case.model) else case.wrap


@st.composite
def freeze_masks(draw: DrawFn, of: Block | Case, /) -> tuple[Freeze, ...]:
    """Draw modules and parameters that do not require a gradient; some loss still does."""
    tape, swarm = _begin(draw)
    return draw_freezes(tape, swarm, replace(_case_of(of), freezes=()))


@st.composite
def reuse_patterns(draw: DrawFn, of: Block | Case, /) -> tuple[Tie, ...]:
    """Draw parameters registered at two places, mostly within one wrap group of a case."""
    tape, swarm = _begin(draw)
    return draw_ties(tape, swarm, replace(_case_of(of), ties=()))


@st.composite
def schedules(draw: DrawFn, of: Block | Case, /) -> tuple[Op, ...]:
    """Draw training runs of a graph or a case: forwards, backwards, steps and more."""
    tape, swarm = _begin(draw)
    case = replace(_case_of(of), schedule=())
    drawn = draw_schedule(tape, swarm, TrainedModel.of(case))
    return with_first_uses(replace(case, schedule=drawn)).schedule


Drawn = SearchStrategy[T] | Callable[[Case], SearchStrategy[T]]
"""A strategy, or a function that returns one for the case as far as it is drawn."""


@st.composite
def cases(
    draw: DrawFn,
    *,
    mesh: SearchStrategy[Mesh] | None = None,
    inputs: SearchStrategy[Inputs] | None = None,
    model: SearchStrategy[Block] | None = None,
    wrap: Drawn[tuple[WrapGroup, ...]] | None = None,
    ties: Drawn[tuple[Tie, ...]] | None = None,
    freezes: Drawn[tuple[Freeze, ...]] | None = None,
    schedule: Drawn[tuple[Op, ...]] | None = None,
    engines: tuple[EngineName, ...] = ALL_ENGINES,
    cuda: bool = False,
) -> Case:
    """Draw valid cases: whole experiments, on four ranks at most unless ``mesh`` says otherwise.

    The other arguments are named as the fields of a case that they draw. ``wrap``, ``ties``,
    ``freezes`` and ``schedule`` are strategies, or functions that return one for the case as far
    as it is drawn: ``cases(schedule=schedules)`` calls ``schedules(case)``. Cases in which what is
    given does not fit together are left out. A case has some of ``engines``; with ``cuda`` some
    need CUDA devices.
    """
    tape = DrawnTape(draw)
    ranks = None if mesh is None else draw(mesh)
    allowed = tape.outline(draw_swarm)
    if ranks and ranks.tensor:
        allowed = with_choice(allowed, "tensor")
    if inputs is not None:
        allowed -= {IMAGES}
    given = Given(
        mesh=None if ranks is None else lambda: ranks,
        inputs=None if inputs is None else lambda: draw(inputs),
        model=None if model is None else lambda: draw(model),
        wrap=_asked(draw, wrap),
        ties=_asked(draw, ties),
        freezes=_asked(draw, freezes),
        schedule=_asked(draw, schedule),
    )
    kept = Kept(tape, allowed)
    case = draw_case([tape] * len(SIZES), kept, _MAX_RANKS, engines, cuda=cuda, given=given)
    if not case.engines or (given != Given() and not is_valid(case)):
        reject()
    return with_first_uses(case) if schedule is None else case


def _asked(draw: DrawFn, part: Drawn[T] | None) -> Callable[[Case], T] | None:
    if part is None:
        return None
    return lambda case: draw(part if isinstance(part, SearchStrategy) else part(case))


def _begin(draw: DrawFn) -> tuple[DrawnTape, Swarm]:
    """Return a tape, and what it may draw."""
    tape = DrawnTape(draw)
    return tape, Kept(tape, tape.outline(draw_swarm))


def _case_of(of: Block | Case) -> Case:
    """Return a case; of a graph one whose root is wrapped, and that has nothing besides."""
    if isinstance(of, Case):
        return of
    data = fitting(of, Inputs(batch=2, tensors=(TensorSpec(size=4),)))
    root = WrapGroup(modules=("",))
    return Case(seed=0, model=of, inputs=data, mesh=Mesh(shard=2), schedule=(), wrap=(root,))
