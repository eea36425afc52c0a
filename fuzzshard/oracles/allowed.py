"""What documents let engines do otherwise than the reference, one by one, each with its reason
(:func:`manner_here`). Whatever is not here is a finding.

Each is a prediction, and no excuse: the reference trains once more in the :class:`Manner` that is
documented for the engine, and every tensor of the engine has to be what that one has. Where a
document leaves something open, such as how often a batch is counted, the trace of the engine says
what it did, and the values follow from that.

Refusals (errors) are listed in :mod:`fuzzshard.engines.refusals`, cases that an engine's
documentation excludes in the tables of ``parts/engines``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from fuzzshard.analysis.arrivals import ignored_parameters
from fuzzshard.analysis.conditions import recomputes_buffers
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.analysis.units import units
from fuzzshard.case.case import TRACED_BACKWARD, Case
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.reference.manner import Manner
from fuzzshard.oracles.compare import Difference
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import BY_NAME
from fuzzshard.training.trace import Trace


def _made(case: Case, trace: Trace) -> frozenset[tuple[int, str]]:
    """Return the parameters whose state a save on disk may have made, a load, or a step that is
    skipped within a fused operator: it is there, and after a save or such a step as it is before a
    first step.
    """
    may_skip = case.optimizer.grad_scaler and "fused" in case.optimizer.flags
    saves = {at.index for at in follow(case) if at.op.via in BY_NAME}
    saves |= {at.index for at in follow(case) if at.op.updates and may_skip}
    loads = {at.index for at in follow(case) if at.op.loads and at.saved in BY_NAME}
    made, stepped = set[tuple[int, str]](), set[tuple[int, str]]()
    for key, held in trace.tensors.items():
        if key.op in saves | loads and key.rule.is_state and held.tensor is not None:
            name, _, fqn = key.name.partition(" of ")
            initial = case.optimizer.initially(name) if key.op in saves else None
            made.add((key.op, fqn))
            if initial is not None and not _is_full_of(initial, held.tensor):
                stepped.add((key.op, fqn))
    return frozenset(made - stepped)


def _is_full_of(value: float, tensor: torch.Tensor) -> bool:
    """Return whether it has nothing but that; optimizers keep scalars in float32."""
    rounded = torch.tensor(value).to(tensor.dtype)
    return any(bool((tensor == each).all()) for each in (tensor.new_tensor(value), rounded))


def _filled(case: Case, trace: Trace) -> frozenset[tuple[int, str]]:
    """Return the gradients that there are of parameters which share a unit with others, by op."""
    shared = {fqn for unit in units(case).values() if len(unit) > 1 for fqn in unit}
    return frozenset(
        (key.op, key.name)
        for key, held in trace.tensors.items()
        if key.rule.gradient in ("reduced", "local")
        and held.tensor is not None
        and key.name in shared
    )


def _averaged_in_half(case: Case, spec: EngineSpec) -> dict[str, Dtype]:
    """Return the parameters whose gradients a hook averages in half precision, and in which."""
    half = spec.averages_in_half(case)
    if half is None:
        return {}
    ignored = ignored_parameters(case, by_replicate=spec.ignores_modules)
    return {fqn: half for fqn in inferred(case).parameters if fqn not in ignored}


def is_beyond_rounding(difference: Difference) -> bool:
    """Return whether a tensor is there or not, has another type, or counts something: what is
    allowed begins with that.
    """
    both = difference.both
    return both is None or not both[0].is_floating_point()


def may_be_allowed(case: Case, engine: str, difference: Difference) -> bool:
    """Return whether a difference may follow from what is allowed: nothing is said of it where the
    reference cannot train again.
    """
    if recomputes_buffers(case):
        return True
    spec, rule = spec_of(engine), difference.key.rule
    makes = rule.is_state or (rule.gradient and (spec.applies_groups or spec.has_units))
    return bool(makes) and is_beyond_rounding(difference)


def manner_here(case: Case, engine: str, trace: Trace) -> Manner:
    """Return what the documents of an engine let it do in a case, as its trace on this rank says
    that it did.
    """
    spec = spec_of(engine)
    return Manner(
        # Inputs of a wrapped module pass through one torch.autograd.Function: a backward runs
        # through all of them if it runs through one, and recomputes checkpoints before unused
        # ones. It may materialize undefined gradients as zeros (set_materialize_grads), which
        # inputs have then, and no parameters.
        joins_inputs=spec.applies_groups and bool(case.wrap),
        # The gradient of a flat parameter is one tensor, with zeros for parameters that a
        # backward does not reach (torch/distributed/fsdp/_flat_param.py, _reset_is_grad_none).
        filled=_filled(case, trace) if spec.has_units else frozenset(),
        # The recomputation of a compiled checkpoint is a part of the backward's graph, and
        # changes of buffers are kept out of it: a batch norm counts its batch once, where plain
        # checkpointing counts it again.
        counts=trace.counts if case.compile in TRACED_BACKWARD else {},
        # get_optimizer_state_dict makes the states of an optimizer that has none yet
        # (torch/distributed/checkpoint/state_dict.py, _init_optim_state): ASGD takes the size of
        # its first step from the learning rate then (torch/optim/asgd.py, _init_group), and a
        # load casts what there is to the dtype of the parameter. A GradScaler steps an optimizer
        # with fused in any case (torch/amp/grad_scaler.py, step: "This optimizer has customized
        # scale-handling logic"), which makes its states even if it skips the rest.
        made=_made(case, trace),
        # "gradients will be accumulated on module variables, which will later be synchronized"
        # (torch/nn/parallel/distributed.py, no_sync): with all that these hold. FSDP1 with
        # NO_SHARD "runs gradient reduction (which directly covers any gradient accumulation
        # implicitly)" (torch/distributed/fsdp/_runtime_utils.py, _reduce_grad_no_shard). The mean
        # is the same, and rounded otherwise.
        averages_again=spec.averages_again(case),
        # Hooks round what they average, as their docstrings say (see Hook in
        # fuzzshard/parts/options/ddp.py), and not what replicate was told to ignore.
        in_half=_averaged_in_half(case, spec),
    )


def manner_of(case: Case, engine: str, trace: Trace, mesh: RankMesh) -> Manner:
    """Return the same; all ranks of the mesh ask together.

    A rank may have the states and gradients of some parameters only: all ranks make those that
    some have.
    """
    here = manner_here(case, engine, trace)
    everywhere: list[Any] = [None] * dist.get_world_size(mesh.everyone)
    dist.all_gather_object(everywhere, (here.made, here.filled), group=mesh.everyone)
    made, filled = map(frozenset[tuple[int, str]]().union, *everywhere)
    return dataclasses.replace(here, made=made, filled=filled)
