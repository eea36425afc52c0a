"""What every engine is: a way to parallelise one model, synchronise its gradients and inspect it."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.graph import BatchNorm
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule import SetFlag
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.model.build import build_model


class Engine(abc.ABC):
    """One model of a case, ready to train on one rank.

    Construction builds the model, freezes, checkpoints and parallelises it, in the order the case says.
    ``module`` is what a forward of the root calls. Errors of torch pass through.
    """

    name: ClassVar[str]
    reregisters: ClassVar[bool] = False
    """Whether the engine registers other tensors at the same names in the course of training."""

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        self.case = case
        self.mesh = mesh
        self.dtype = dtype
        self.facts: Facts = facts(case)
        self.model = build_model(case, mesh.device, dtype)
        self._places = {fqn: self._place(fqn) for fqn in self.facts.parameters}
        self._freeze(after_wrap=False)
        self._checkpoint()
        self.module = self.parallelize(self.model)
        self._freeze(after_wrap=True)
        self.trained = {fqn: self.parameter(fqn) for fqn in self.facts.parameters}
        """The parameters the optimizer holds; what is registered may differ while a group is unsharded."""

    @abc.abstractmethod
    def parallelize(self, model: nn.Module) -> nn.Module:
        """Wraps the model and returns what a forward of the root calls."""

    @abc.abstractmethod
    def set_flag(self, op: SetFlag) -> None:
        """Applies a synchronisation flag of the schedule."""

    def before_backward(self) -> None:  # noqa: B027
        """Called before every ``backward``."""

    def after_backward(self) -> None:  # noqa: B027
        """Called after every ``backward``: explicit synchronisation, where the engine has none."""

    def after_step(self) -> None:  # noqa: B027
        """Called after every optimizer step."""

    def before_change(self) -> None:  # noqa: B027
        """Called before parameters change although a forward ran after the last backward."""

    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """What ``.grad`` of the trained parameters holds, by the oracle that judges it.

        ``gradient`` is reduced over the mesh, ``local_gradient`` also has this rank's unreduced part in it.
        """
        return {"gradient": {fqn: parameter.grad for fqn, parameter in self.trained.items()}}

    def call_target(self, path: str) -> nn.Module:
        """The module that a forward of ``path`` calls."""
        return self.model.get_submodule(path) if path else self.module

    def parameter(self, fqn: str) -> nn.Parameter:
        """The parameter registered at ``fqn`` now."""
        parameters, name = self._places[fqn]
        return parameters[name]

    def _place(self, fqn: str) -> tuple[dict[str, nn.Parameter], str]:
        """Where a parameter is registered; ``get_parameter`` walks the tree on every call."""
        path, _, name = fqn.rpartition(".")
        parameters: Any = self.model.get_submodule(path)._parameters
        return parameters, name

    def parameters_at(self, target: str) -> list[nn.Parameter]:
        """The registered parameters at or below ``target`` (a module or parameter)."""
        return [self.parameter(fqn) for fqn in self.facts.parameters if is_within(fqn, target)]

    def _freeze(self, *, after_wrap: bool) -> None:
        for freeze in self.case.freezes:
            if freeze.after_wrap == after_wrap:
                for parameter in self.parameters_at(freeze.target):
                    parameter.requires_grad_(False)

    def checkpoints_module(self, path: str) -> bool:
        """Whether this engine checkpoints the module at ``path``."""
        return True

    def _checkpoint(self) -> None:
        for checkpoint in self.case.checkpoints:
            path = checkpoint.module
            if not self.checkpoints_module(path):
                continue
            module = self.model.get_submodule(path)
            if checkpoint.implementation == "composable":
                composable_checkpoint(module)
            else:
                parent, _, name = path.rpartition(".")
                setattr(self.model.get_submodule(parent), name, checkpoint_wrapper(module))

    def has_batch_norm(self, path: str) -> bool:
        """Whether a batch norm is at or below ``path``: recomputation updates its statistics again."""
        return any(isinstance(m, BatchNorm) and is_within(p, path) for p, m in self.facts.modules.items())
