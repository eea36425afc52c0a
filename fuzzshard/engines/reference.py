"""The truth: the plain module, with an explicit gradient all-reduce where the schedule synchronises."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.groups import root_groups
from fuzzshard.case.schedule import SetFlag
from fuzzshard.engines.base import Engine
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.sync import ExplicitSync, SyncFlags


class Reference(Engine):
    """Not DDP: DDP is an engine under test, and its reducer is fixed at construction."""

    name: ClassVar[str] = "reference"

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        super().__init__(case, mesh, dtype)
        self.flags = SyncFlags(case)
        self.sync = self.make_sync()

    def make_sync(self) -> ExplicitSync:
        """How gradients are averaged; the noise twin overrides it."""
        return ExplicitSync(self.mesh, dict(self.facts.owners), self.flags)

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        """Only watches which FSDP roots a backward will reach: their groups synchronise then."""
        self._reached: set[int] = set()
        for root, group in zip(root_groups(self.case), self.case.wrap, strict=True):
            for path in group.modules:
                model.get_submodule(path).register_forward_hook(functools.partial(self._watch, root))
        return model

    def _watch(self, root: int, module: nn.Module, args: object, output: object) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: self._reached.add(root))  # type: ignore[no-untyped-call]

    @override
    def checkpoints_module(self, path: str) -> bool:
        """Recomputation updates the statistics of a batch norm twice, with any engine; so must the truth."""
        return self.has_batch_norm(path)

    @override
    def set_flag(self, op: SetFlag) -> None:
        self.flags.set(op)

    @override
    def before_backward(self) -> None:
        self._reached.clear()
        self.sync.before_backward(self.trained)

    @override
    def after_backward(self) -> None:
        self.sync.after_backward(self.trained, self._reached)

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        held = super().gradients()
        if self.sync.local:
            held["local_gradient"] = {
                fqn: self.sync.with_local(fqn, gradient) for fqn, gradient in held["gradient"].items()
            }
        return held


class _NoisySync(ExplicitSync):
    """Adds to every average an error as large as another reduction order could make."""

    def __init__(self, twin: NoiseTwin) -> None:
        super().__init__(twin.mesh, dict(twin.facts.owners), twin.flags)
        self.noise_seed = twin.noise_seed

    @override
    def average(self, local: torch.Tensor, accumulated: torch.Tensor | None) -> torch.Tensor:
        average = super().average(local, accumulated)
        scale = super().average(local.abs(), None)
        if accumulated is not None:
            scale = scale + accumulated.abs()
        unit = self.mesh.size * torch.finfo(average.dtype).eps / 2
        # One sign pattern for each shape, so that the errors of several microbatches add up.
        generator = torch.Generator().manual_seed(self.noise_seed)
        return average + unit * scale * _signs(average, generator)


def _signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1).to(like.device)


class NoiseTwin(Reference):
    """The reference with every sum of gradients off by as much as another order of its terms could make it.

    Reductions are off by the a-priori bound n u mean|g_i|, which holds for summation in any order (Higham,
    Accuracy and Stability of Numerical Algorithms, section 4.2); all ranks draw the same signs. What a
    module contributes to the gradient of its inputs is off by two rounding units: an engine that puts
    autograd nodes at module boundaries makes autograd add the contributions in another order. What the
    twin's later tensors differ by from the reference's is the scale by which rounding alone may move them.
    """

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype, noise_seed: int) -> None:
        self.noise_seed = noise_seed
        self.generator = torch.Generator().manual_seed(noise_seed)
        super().__init__(case, mesh, dtype)

    @override
    def make_sync(self) -> ExplicitSync:
        return _NoisySync(self)

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        for module in model.modules():
            module.register_forward_pre_hook(self._perturb_inputs)
        return super().parallelize(model)

    @override
    def after_step(self) -> None:
        """Moves every parameter that was stepped by a rounding unit of its largest element."""
        with torch.no_grad():
            for parameter in self.trained.values():
                if parameter.grad is not None and parameter.numel():
                    unit = torch.finfo(parameter.dtype).eps * parameter.abs().max()
                    generator = torch.Generator().manual_seed(self.noise_seed)
                    parameter.add_(unit * _signs(parameter, generator))

    def _perturb_inputs(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(self._perturbed(a) if a.requires_grad else a for a in args)

    def _perturbed(self, tensor: torch.Tensor) -> torch.Tensor:
        view = tensor.view_as(tensor)
        unit = torch.finfo(tensor.dtype).eps

        def perturb(gradient: torch.Tensor) -> torch.Tensor:
            return gradient + unit * gradient * _signs(gradient, self.generator)

        if view.requires_grad:
            view.register_hook(perturb)  # type: ignore[no-untyped-call]
        return view
