"""What a run leaves behind in an engine: hooks, states of the optimizer, and what a sharding
engine holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from fuzzshard.engines.base import Engine
from fuzzshard.engines.fully_shard.state import GroupState
from fuzzshard.parts.oracle import IN_SPEC
from fuzzshard.program.run import FILE

if TYPE_CHECKING:
    from fuzzshard.training.trainer import Trainer

_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Layout(NamedTuple):
    """How a tensor is laid out over the ranks, and what this rank has of it.

    A DTensor says its dtype twice: operators take it from ``tensor_meta`` of its spec when they
    plan.
    """

    placements: tuple[str, ...]
    mesh: tuple[int, ...]
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    device: str

    def __str__(self) -> str:
        where = (
            f", {', '.join(self.placements)} on mesh {list(self.mesh)}" if self.placements else ""
        )
        return (
            f"{list(self.local_shape)} of {list(self.shape)} {self.dtype} on {self.device}{where}"
        )


@dataclasses.dataclass(frozen=True)
class Leftovers:
    """What there is after the last op.

    ``hooks`` are those of modules and parameters, before the run and after it, where their numbers
    differ. ``states`` are optimizer states, and gradients that ``fully_shard`` manages, and their
    parameters, where their layouts differ. ``pending`` says that forwards still wait for a
    backward.
    """

    hooks: Mapping[str, tuple[int, int]]
    states: Mapping[str, tuple[Layout, Layout]]
    groups: Mapping[int, GroupState]
    pending: bool


def hook_counts(engine: Engine) -> dict[str, int]:
    """Return how many hooks modules and parameters have, by kind, without those of users."""
    found = {}
    for path, module in engine.model.named_modules():
        for kind in _OF_MODULES:
            hooks = getattr(module, kind).values()
            found[f"{kind} of {path or 'the root'}"] = sum(not _is_of_user(h) for h in hooks)
    for fqn, parameter in engine.trained.items():
        for kind in _OF_TENSORS:
            hooks = (getattr(parameter, kind, None) or {}).values()
            found[f"{kind} of {fqn}"] = sum(not _is_of_user(hook) for hook in hooks)
    return found


def _is_of_user(hook: object) -> bool:
    """Return whether an op of the schedule registered it."""
    code = getattr(hook, "__code__", None)
    return code is not None and code.co_filename == FILE


def leftovers(trainer: Trainer, hooks: Mapping[str, int]) -> Leftovers:
    """Return what the run of ``trainer`` has left, beside ``hooks`` that its engine began with."""
    engine = trainer.engine
    after = hook_counts(engine)
    names = sorted(hooks.keys() | after.keys())
    counts = {name: (hooks.get(name, 0), after.get(name, 0)) for name in names}
    groups = engine.group_states()
    layouts = {}
    for fqn, parameter in engine.trained.items():
        held = [each.state.get(parameter, {}) for each in trainer.optimizers]
        for kind, state in (pair for states in held for pair in states.items()):
            if isinstance(state, torch.Tensor) and _is_like(state, parameter):
                layouts[f"{kind} of {fqn}"] = (layout(state), _due(state, parameter))
        if (
            groups
            and engine.inferred.owners.get(fqn) is not None
            and isinstance(parameter.grad, DTensor)
        ):
            gradient = parameter.grad
            layouts[f"gradient of {fqn}"] = (layout(gradient), _due(gradient, parameter))
    return Leftovers(
        hooks={name: pair for name, pair in counts.items() if pair[0] != pair[1]},
        states={name: pair for name, pair in layouts.items() if pair[0] != pair[1]},
        groups=groups,
        pending=bool(trainer.pending),
    )


def _is_like(state: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a state is made like its parameter: not a number, nor of rows or columns only."""
    differ = isinstance(state, DTensor) != isinstance(parameter, DTensor)
    return bool(state.dim()) and (differ or state.shape == parameter.shape)


def _due(tensor: torch.Tensor, parameter: torch.nn.Parameter) -> Layout:
    """The layout of what is made like ``parameter``, or of its gradients in their own dtype."""
    due, dtype = layout(parameter), parameter.grad_dtype or tensor.dtype
    made = tensor.dtype == dtype != parameter.dtype
    return due._replace(dtype=str(dtype).removeprefix("torch.")) if made else due


def layout(tensor: torch.Tensor) -> Layout:
    """Return the layout of ``tensor``."""
    placements: tuple[str, ...] = ()
    mesh: tuple[int, ...] = ()
    local, dtype = tensor, str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, DTensor):
        claimed = tensor._spec.tensor_meta
        if claimed is not None and claimed.dtype != tensor.dtype:
            dtype += f", {str(claimed.dtype).removeprefix('torch.')}{IN_SPEC}"
        placements, mesh = tuple(map(str, tensor.placements)), tuple(tensor.device_mesh.shape)
        local = tensor.to_local()
    return Layout(
        placements,
        mesh,
        tuple(tensor.shape),
        tuple(local.shape),
        dtype,
        local.device.type,
    )
