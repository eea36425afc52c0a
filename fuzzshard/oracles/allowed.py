"""Differences that are allowed, one by one, each with its reason. Whatever is not here is a
finding.

Refusals (errors) are listed in :mod:`fuzzshard.engines.refusals`, cases that an engine's
documentation excludes in ``engines/*.not_applicable``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from fuzzshard.case.arrivals import arrivals
from fuzzshard.case.case import TRACED_BACKWARD, Case
from fuzzshard.case.facts import has_batch_norm
from fuzzshard.case.graph import modules_below
from fuzzshard.case.schedule_state import first, follow
from fuzzshard.case.units import parameter_units
from fuzzshard.oracles.compare import Difference
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines import spec_of


class Allowed(NamedTuple):
    """One allowed difference: of which engines, what it is, and where it is documented."""

    of: Callable[[EngineSpec], bool]
    applies: Callable[[Case, Difference], bool]
    reason: str


def _fills_none(difference: Difference, value: float | None) -> bool:
    """Whether there is a tensor full of ``value`` where plain training has none; None: of any.

    Optimizers keep scalars in float32, also where a load casts them to another dtype later.
    """
    observed = difference.observed
    if difference.expected is not None or observed is None:
        return False
    return value is None or bool((observed == torch.tensor(value).to(observed.dtype)).all())


def _zero_input_gradient(case: Case, difference: Difference) -> bool:
    return difference.key.rule.gradient == "input" and _fills_none(difference, 0.0)


def _initialised_state(case: Case, difference: Difference) -> bool:
    initial = case.optimizer.initially(difference.key.name.partition(" of ")[0])
    return difference.key.rule.is_state and (
        _fills_none(difference, initial) or _has_cast_what_was_initialised(case, difference)
    )


def _has_cast_what_was_initialised(case: Case, difference: Difference) -> bool:
    """Whether a load of a state that no step had made has changed the dtype of a scalar."""
    expected, observed = difference.expected, difference.observed
    return (
        expected is not None
        and observed is not None
        and expected.numel() == observed.numel() == 1
        and observed.dtype != expected.dtype
        and bool(torch.isclose(observed.to(expected.dtype), expected, rtol=1e-5))
        and _first_save_without_state(case, difference.key.name.partition(" of ")[2])
        < len(case.schedule)
    )


def _first_save_without_state(case: Case, fqn: str) -> int:
    """The first save on disk that may find no state of a parameter; else the end.

    It was frozen or not used until then, or a ``GradScaler`` may have skipped its steps.
    """
    arrived, has_gradient = arrivals(case), False
    for at in follow(case):
        index, op = at.index, at.op
        has_gradient |= fqn in arrived.get(index, frozenset()) - at.stepped
        if op.updates and has_gradient and not case.optimizer.does("scales"):
            break
        if op.via == "dcp":
            return index
    return len(case.schedule)


def _begins_at_the_rate_of_a_save(case: Case, difference: Difference) -> bool:
    """Whether values may follow from the rate of a learning rate scheduler at a save."""
    expected, observed = difference.expected, difference.observed
    return (
        expected is not None
        and observed is not None
        and expected.shape == observed.shape
        and (expected.dtype == observed.dtype or difference.key.rule.is_state)
        and difference.key.op >= _first_step_at_the_rate_of_a_save(case)
    )


@functools.lru_cache(maxsize=64)  # asked for every tensor that differs
def _first_step_at_the_rate_of_a_save(case: Case) -> int:
    """The first step of a parameter whose state a save may have made, where a scheduler may have
    changed the learning rate since; else the end.
    """
    optimizer = case.optimizer
    if not optimizer.scheduler or None not in map(optimizer.initially, optimizer.states):
        return len(case.schedule)
    arrived = arrivals(case)
    ever, waiting, stepped = set[str](), set[str](), set[str]()
    saved = changed = False
    kept = frozenset[str](), False, False
    for at in follow(case):
        index, op = at.index, at.op
        came = arrived.get(index, frozenset()) - at.stepped
        ever |= came
        waiting |= came
        if op.zeroes_gradients and op.set_to_none:
            waiting.clear()
        if op.casts_to or op.rebuilds:  # the optimizer and its scheduler are made anew
            waiting.clear()
            stepped.clear()
            saved = changed = False
        if op.updates:
            if changed and ever - stepped:
                return index
            stepped |= waiting
            changed |= saved
        saved |= op.via == "dcp" and not stepped
        if op.via:
            kept = frozenset(stepped), saved, changed
        if op.loads:
            stepped, saved, changed = set(kept[0]), kept[1], kept[2]
    return len(case.schedule)


def _recomputed_in_a_graph(case: Case, difference: Difference) -> bool:
    return case.compile in TRACED_BACKWARD and _recomputed(case, difference)


def _recomputed(case: Case, difference: Difference) -> bool:
    """Statistics of batch norms in checkpoints, and what an evaluation computes from them.

    From a backward through an evaluation on, that is everything.
    """
    key = difference.key
    if not any(has_batch_norm(case, checkpoint.module) for checkpoint in case.checkpoints):
        return False
    if key.op >= _trained_by_evaluation(case):
        return True
    if key.rule.holds_buffers:
        recomputed = {p for c in case.checkpoints for p in modules_below(case.model, c.module)}
        return key.name.rpartition(".")[0] in recomputed
    return key.rule.of_forward and key.op in _evaluates(case)


@functools.lru_cache(maxsize=64)  # asked for every tensor that differs
def _trained_by_evaluation(case: Case) -> int:
    """The first backward of a forward in evaluation mode; else the end."""
    evaluates = _evaluates(case)
    taken = (at.index for at in follow(case) if any(each.place in evaluates for each in at.taken))
    return next(taken, len(case.schedule))


@functools.lru_cache(maxsize=64)
def _evaluates(case: Case) -> frozenset[int]:
    """The ops that run in evaluation mode."""
    return frozenset(at.index for at in follow(case) if not at.training)


def _zeros_in_a_flat_gradient(case: Case, difference: Difference) -> bool:
    owners = parameter_units(case)
    unit = owners.get(difference.key.name)
    return (
        difference.key.rule.gradient in ("reduced", "local")
        and (_fills_none(difference, 0.0) or _clipped_by_no_number(case, difference))
        and list(owners.values()).count(unit or frozenset()) > 1
    )


def _clipped_by_no_number(case: Case, difference: Difference) -> bool:
    """Whether zeros may have been multiplied by the norm of gradients that are no numbers."""
    return (
        first(case, lambda op: op.clips) <= difference.key.op
        and difference.expected is None
        and difference.observed is not None
        and bool(difference.observed.isnan().all())
    )


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        lambda spec: spec.applies_groups,
        _zero_input_gradient,
        "an input that is not used gets a gradient of zeros: inputs pass through a "
        "torch.autograd.Function, "
        "which materializes undefined gradients as zeros (FunctionCtx.set_materialize_grads)",
    ),
    Allowed(
        lambda spec: spec.has_units,
        _zeros_in_a_flat_gradient,
        "the gradient of a flat parameter is one tensor, with zeros for parameters that a "
        "backward does not reach (torch/distributed/fsdp/_flat_param.py, _reset_is_grad_none); "
        "clip_grad_norm_ multiplies them, by NaN where the norm is",
    ),
    Allowed(
        lambda spec: True,
        _recomputed_in_a_graph,
        "the recomputation of a compiled checkpoint is a part of the backward's graph, and "
        "changes of "
        "buffers are kept out of it: a batch norm counts its batch once, where plain "
        "checkpointing "
        "counts it again",
    ),
    Allowed(
        lambda spec: spec.applies_groups,
        _recomputed,
        "a backward runs through all inputs of a wrapped module if it runs through one, as they "
        "pass through one torch.autograd.Function: a checkpoint before an unused input is "
        "recomputed, too, and a batch norm in it counts its batch again",
    ),
    Allowed(
        lambda spec: True,
        _initialised_state,
        "get_optimizer_state_dict steps an optimizer that has no state yet with gradients of "
        "zeros (torch/distributed/checkpoint/state_dict.py, _init_optim_state); loading what it "
        "returns casts it to the dtype of the parameter",
    ),
    Allowed(
        lambda spec: True,
        _begins_at_the_rate_of_a_save,
        "ASGD takes the size of its first step from the learning rate when its state is made "
        "(torch/optim/asgd.py, _init_group), which get_optimizer_state_dict may do before a "
        "scheduler changes the rate",
    ),
)


def is_allowed(engine: str, case: Case, difference: Difference) -> bool:
    """Whether a listed reason covers the difference."""
    return any(a.of(spec_of(engine)) and a.applies(case, difference) for a in ALLOWED)
