"""How the model of a case is cut into the stages of a pipeline."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple, get_args

from msgspec.structs import replace

from fuzzshard.analysis.check_dtypes import called_dtypes
from fuzzshard.analysis.dtypes import Casts, casts
from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.graph import Alias, Block, Call, Module, walk
from fuzzshard.case.paths import is_within_any
from fuzzshard.parts.dtypes import promote
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.options.wrap_group import When


class Stage(NamedTuple):
    """Children of the root that run one after another, as a case of their own; ``rank`` is the
    place on the pipeline axis of the ranks that have it.
    """

    number: int
    rank: int
    names: tuple[str, ...]
    case: Case


def chain(case: Case) -> tuple[Call, ...]:
    """Return the calls of the root, if each one is of another child, which takes nothing but the
    tensor that the one before returned, and returns one; else none.
    """
    root = case.model
    calls = tuple(node for node in root.nodes if isinstance(node, Call))
    values = (*root.inputs, *(call.name for call in calls))
    by_utils = {c.module for c in case.checkpoints if c.implementation == "utils"}
    fits = (
        len(calls) == len(root.nodes)
        and len({call.module for call in calls}) == len(calls)
        and len(root.inputs) == 1
        and (root.returns, root.outputs) == ("tensor", values[-1:])
        and all(call.args == values[i : i + 1] for i, call in enumerate(calls))
        and all(_is_plain(case, call, root.child(call.module)) for call in calls)
        and by_utils.isdisjoint(("", *(call.module for call in calls)))
    )
    return calls if fits else ()


def _is_plain(case: Case, call: Call, module: Module | None) -> bool:
    """Return whether ``nn.Sequential`` calls a child as the root does."""
    if isinstance(module, Alias) or not call.grad or call.alternatives:
        return False
    if inferred(case).output_values[call.module][0].patches:
        return False
    if isinstance(module, Block):
        forms = (module.passing, module.returns, module.has_method)
        return forms == ("positional", "tensor", False) and len(module.inputs) == 1
    return isinstance(module, Leaf) and not (case.inputs.seq and "channels" in module.takes)


def num_stages(case: Case) -> int:
    """Return how many stages the pipeline has."""
    return (case.mesh.pipeline or 1) * case.pipelining.stages_per_rank


def loss_scale(case: Case, count: int) -> int:
    """Return what the loss of each of ``count`` microbatches is multiplied by, so that gradients
    are those of the sum of all losses: schedules divide them (``scale_grads``).
    """
    return count if case.pipelining.scale_grads else 1


@functools.lru_cache(maxsize=16)
def evaluations(case: Case) -> dict[int, tuple[int, ...]]:
    """Return the forwards that a schedule runs without gradients, by the place of the last one: as
    many at once as the first backward takes, one after another and under one context manager.
    """
    taken = (len(at.taken) for at in follow(case) if at.op.takes)
    count, found, mode = next(taken, 0), dict[int, tuple[int, ...]](), ""
    together: tuple[int, ...] = ()
    for place, op in enumerate(case.schedule):
        this = op.begins.mode if op.begins else ""
        together = (*(together if this == mode else ()), place) if this else ()
        mode = this
        if together and len(together) == count:
            found[place], together = together, ()
    return found


@functools.lru_cache(maxsize=64)
def stages(case: Case) -> tuple[Stage, ...]:
    """Return the stages, each of about as many children of the root; none if it is no chain, or
    has fewer.
    """
    calls, count, ranks = chain(case), num_stages(case), case.mesh.pipeline or 1
    if len(calls) < count:
        return ()
    found = []
    for index in range(count):
        of_stage = calls[len(calls) * index // count : len(calls) * (index + 1) // count]
        rank = case.pipelining.rank_of(index, ranks)
        names = tuple(call.module for call in of_stage)
        found.append(Stage(index, rank, names, _part(case, of_stage, names)))
    return tuple(found)


def _part(case: Case, calls: tuple[Call, ...], names: tuple[str, ...]) -> Case:
    """Return a case whose model is one stage."""
    takes = inferred(case).input_values[names[0]][0]
    tensor = TensorSpec(kind="ids" if takes.ids else "float", size=takes.size)
    inputs = replace(case.inputs, tensors=(tensor,))
    first, *rest = calls
    model = replace(
        case.model,
        children=tuple(child for child in case.model.children if child.name in names),
        nodes=(replace(first, args=case.model.inputs), *rest),
        outputs=(calls[-1].name,),
    )
    groups = tuple(g for g in case.wrap if all(not m or _top(m) in names for m in g.modules))
    ties = tuple(tie for tie in case.ties if _top(tie.source) in names)
    return replace(case, model=model, inputs=inputs, wrap=groups, ties=ties, schedule=())


def trains(case: Case) -> bool:
    """Return whether some parameter of a stage is not frozen before it is wrapped."""
    targets = [freeze.target for freeze in case.freezes if not freeze.after_wrap]
    return any(not is_within_any(name, targets) for name in inferred(case).parameters)


def casts_between_stages(case: Case) -> bool:
    """Return whether a value changes its dtype, or loses digits, where one stage ends and the
    next begins: each casts as the root does, which casts the first input and the last output.
    """
    root = casts(case).get("", Casts())
    ends = {stage.names[-1] for stage in stages(case)[:-1]}
    passed = {c.outputs[0] for c in called_dtypes(case, inferred(case)) if c.module in ends}
    return any(
        dtype is not None
        and (root.inputs or root.outputs or dtype, root.outputs or dtype)
        != (dtype, promote(dtype, root.outputs or dtype))
        for dtype in passed
    )


def stops_gradients(case: Case) -> bool:
    """Return whether what a stage returns does not depend on what it takes, on some path."""
    for stage in stages(case)[1:]:
        tensors = tuple(replace(t, requires_grad=True) for t in stage.case.inputs.tensors)
        inputs = replace(stage.case.inputs, tensors=tensors)
        if not all(flow_of(replace(stage.case, inputs=inputs)).outputs("", frozenset())):
            return True
    return False


def _top(path: str) -> str:
    return path.partition(".")[0]


def shared_by_stages(case: Case) -> Iterator[str]:
    """Yield what is meant for several of the stages together, in words."""
    of = {name: stage.number for stage in stages(case) for name in stage.names}
    for path, module in walk(case.model):
        if isinstance(module, Alias) and of.get(_top(path)) != of.get(_top(module.target)):
            yield "a module that is registered twice"
    if any(not checkpoint.module for checkpoint in case.checkpoints):
        yield "a checkpoint"
    for tie in case.ties:
        if of.get(_top(tie.parameter)) != of.get(_top(tie.source)):
            yield "a tied parameter"
    for group in case.wrap:
        ahead = [path for when in get_args(When) for path in group.prefetched(when)]
        if group.modules != ("",) and len({of.get(_top(m)) for m in group.modules}) > 1:
            yield "a wrap group"
        if ahead and len({of.get(_top(m)) for m in (*group.modules, *ahead)}) > 1:
            yield "a group that gathers another one ahead"
