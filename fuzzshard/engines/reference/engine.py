"""The truth: the plain module, with an explicit gradient all-reduce where the schedule
synchronises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import nn
from typing_extensions import override

from fuzzshard.analysis.communication import fills_unused
from fuzzshard.analysis.groups import modules_named
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.passed_roots import passed_roots
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.case.case import Case
from fuzzshard.engines.base import Engine
from fuzzshard.engines.mesh import RankMesh, rank_mesh
from fuzzshard.engines.precision import (
    MasterWeights,
    accumulates_in_reduce_dtype,
    cast_boundaries,
    cast_buffers,
    parameter_dtypes,
)
from fuzzshard.engines.reference.manner import (
    PLAIN,
    Manner,
    Recomputed,
    join_inputs,
    make_states,
)
from fuzzshard.engines.rounding import Shake
from fuzzshard.engines.sync import ExplicitSync, GradientDtypes
from fuzzshard.parts.op import Below


class Reference(Engine):
    """Not DDP: DDP is an engine under test, and its reducer is fixed at construction."""

    name: ClassVar[str] = "reference"

    def __init__(
        self, case: Case, mesh: RankMesh, dtype: torch.dtype, manner: Manner = PLAIN
    ) -> None:
        self.manner = manner
        super().__init__(case, mesh, dtype)
        dtypes = GradientDtypes(
            self.master_weights.leaves,
            self._policy.reduce,
            self._policy.follow_parameters,
            accumulates_in_reduce_dtype(case),
        )
        self.sync = ExplicitSync(mesh, dict(self.inferred.owners), dtypes, manner)

    @override
    def rebuilt(self, case: Case, dtype: torch.dtype) -> Self:
        other = type(self)(case, rank_mesh(case, self.mesh.device), dtype, self.manner)
        if self.shaken is not None:
            other.shake(self.shaken)
        return other

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        """Emulates mixed precision; watches which groups have unsharded parameters."""
        _run_hooks_around_methods(self.inferred, self._modules)
        self._policy = parameter_dtypes(self.case, self.inferred)
        self.master_weights = MasterWeights(model, self._policy)
        norms = {path: self._modules[path] for path in self.inferred.updated}
        self._recomputed = Recomputed(norms if self.manner.counts else {}, self.manner.counts)
        join = functools.partial(join_inputs, self.manner.makes_zeros)
        for index in self._joining():  # inputs are cast before
            for path in self.case.wrap[index].modules:
                module = model.get_submodule(path)
                module.register_forward_pre_hook(join, with_kwargs=True, prepend=True)
        cast_boundaries(self.case, self._modules)
        cast_buffers(self.case, model)
        for index, group in enumerate(self.case.wrap):
            for path in group.modules if fills_unused(self.case, index) else ():
                enter = functools.partial(self._enter, index)
                model.get_submodule(path).register_forward_pre_hook(enter)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.register_forward_hook(_drop_gradients)
        return model

    def _joining(self) -> set[int]:
        """Return the groups that join the inputs of their modules: those that have parameters."""
        owners = self.inferred.owners.values() if self.manner.joins_inputs else ()
        return {owner for owner in owners if owner is not UNMANAGED}

    def shake(self, by: Shake) -> None:
        """Changes the parameters, what they are rounded to, and the inputs and targets to come."""
        self.shaken = self.master_weights.shaken = by
        for name, parameter in self.model.named_parameters():
            by.apply(parameter, name)

    def _enter(self, group: int, module: nn.Module, args: object) -> None:
        """Notes that a group has unsharded parameters: no others get zeros in place of a
        gradient.
        """
        self.sync.filling.add(group)

    @override
    def gather(self, below: Below) -> None:
        for index, group in enumerate(self.case.wrap):
            named = modules_named(self.case, group.modules, below)
            if named and fills_unused(self.case, index):
                self.sync.filling.add(index)

    @override
    def call_target(self, path: str) -> Callable[..., Any]:
        target = super().call_target(path)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.master_weights.computing():
                return target(*args, **kwargs)

        return call

    @override
    def before_op(self, index: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        made = [self.trained[fqn] for op, fqn in self.manner.made if op == index]
        for optimizer, spec in zip(optimizers, self.case.optimizer.each.values(), strict=True):
            make_states(optimizer, made, spec)

    @override
    def before_backward(self) -> None:
        self.sync.before_backward(self.trained)
        self.master_weights.register_leaves()

    @override
    def after_backward(self, index: int) -> None:
        self.master_weights.register_masters()
        self._recomputed.take_back(index)
        passed = passed_roots(self.case, self.mesh.rank)[index]
        self.sync.after_backward(self.trained, self.scope.now, passed)

    @override
    def average(self, ranks: int) -> None:
        held = {fqn: p.grad for fqn, p in self.trained.items() if p.grad is not None}
        for fqn, average in self.sync.averages(held, self.scope.now.flags, ranks).items():
            self.trained[fqn].grad = average

    @override
    def recover(self) -> None:
        self.master_weights.register_masters()
        for parameter in (*self.master_weights.leaves.values(), *self.trained.values()):
            parameter.grad = None
        self.sync.forget()

    @override
    def unreduced_gradients(self) -> dict[str, torch.Tensor | None]:
        """Return nothing under tensor parallelism, where a rank's own gradient may be a part of
        that sum.
        """
        if self.case.tensor_parallel:
            return {}
        managed = (fqn for fqn, owner in self.inferred.owners.items() if owner is not UNMANAGED)
        return {fqn: self.sync.unreduced.get(fqn) for fqn in managed}

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        held = super().gradients()
        if self.sync.local:
            held["local"] = {
                fqn: self.sync.with_local(fqn, gradient)
                for fqn, gradient in held["reduced"].items()
            }
        return held


def _drop_gradients(module: nn.Dropout, args: object, output: torch.Tensor) -> torch.Tensor:
    """``dropout`` returns its input itself where that has no elements, under ``no_grad`` as well.

    On ranks that have rows the result requires no gradient, as documented (``torch.no_grad``): a
    reference whose ranks disagreed would wait for itself.
    """
    dropped = module.training and module.p > 0
    return (
        output.detach()
        if dropped and not output.numel() and not torch.is_grad_enabled()
        else output
    )


def _run_hooks_around_methods(found: Inferred, modules: Mapping[str, nn.Module]) -> None:
    """Makes the method that a block is called by run its forward hooks, as registered forward
    methods do.
    """
    for path, block in found.by_method.items():
        module: Any = modules[path]
        module.forward = getattr(module, block.method)
        setattr(module, block.method, module.__call__)
