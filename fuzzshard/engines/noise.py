"""Noise twins: references that are off by as much as rounding could make another engine be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from fuzzshard.case.case import TRACED_BACKWARD, Case
from fuzzshard.case.strides import folds_by_strides, strides_are_free
from fuzzshard.case.units import fsdp1_normalizes_otherwise, some_engine_multiplies_otherwise
from fuzzshard.engines.batch_norm_noise import cancelled_rows, cancels_rows, centred_sizes, column
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.nested import map_tensors
from fuzzshard.engines.precision import MasterWeights, ParameterDtypes, parameter_dtypes
from fuzzshard.engines.reference import Reference
from fuzzshard.engines.sync import ExplicitSync
from fuzzshard.engines.tensor_noise import (
    add_rounding,
    can_round,
    convolves,
    leaves_rounding_only,
    multiplies,
    normalizes,
    rounded_softmax,
    signs,
)
from fuzzshard.oracles.association import adds_in_another_order
from fuzzshard.training.trace import ROUNDING


class _NoisySync(ExplicitSync):
    """Adds to every average an error as large as another reduction order could make.

    ``rounding`` keeps how large: what a gradient moves by is no bound where this and other noise cancel.
    """

    def __init__(self, twin: NoiseTwin) -> None:
        super().__init__(twin.mesh, dict(twin.facts.owners), twin.flags, twin.gradient_dtypes())
        self.noise_seed = twin.noise_seed
        self.rounding: dict[str, torch.Tensor] = {}
        self.unit = 0.0
        if adds_in_another_order(twin.case):
            dtypes = parameter_dtypes(twin.case, twin.facts).computing.values()
            self.unit = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)

    @override
    def average(
        self, fqn: str, local: torch.Tensor, accumulated: torch.Tensor | None, divisor: float
    ) -> torch.Tensor:
        average = super().average(fqn, local, accumulated, divisor)
        scale = super().average(fqn, local.abs(), None, divisor)
        if accumulated is not None:
            scale = scale + accumulated.abs()
        unit = self.mesh.size * max(self.unit, torch.finfo(average.dtype).eps) / 2
        # One sign pattern for each shape, so that the errors of several microbatches add up.
        generator = torch.Generator().manual_seed(abs(self.noise_seed))
        size = unit * scale + _underflow(average)
        error = size * signs(average, generator)
        if accumulated is not None and fqn in self.rounding:
            size = size + self.rounding[fqn] * (accumulated != 0)  # what was zeroed has no error any more
        self.rounding[fqn] = size
        return average + error if self.noise_seed > 0 else average - error


def _underflow(values: torch.Tensor) -> torch.Tensor | float:
    """What every division of half-precision gradients may lose of those that are no zeros."""
    if values.dtype != torch.float16:
        return 0.0
    info = torch.finfo(values.dtype)
    return (values != 0) * (info.smallest_normal * info.eps)


class _NoisyWeights(MasterWeights):
    """Rounds to low precision up or down at random, once training has moved the masters.

    Rounding is no continuous function: masters that differ by a unit of theirs may round to neighbours.
    """

    def __init__(self, model: nn.Module, policy: ParameterDtypes, noise_seed: int) -> None:
        super().__init__(model, policy)
        self.noise_seed = noise_seed

    @override
    def rewrite(self, leaf: nn.Parameter, master: nn.Parameter) -> None:
        super().rewrite(leaf, master)
        if leaf.dtype == master.dtype:
            return
        generator = torch.Generator().manual_seed(self.noise_seed)
        leaf.add_(torch.finfo(leaf.dtype).eps / 2 * leaf * signs(leaf, generator))


class _NoisySoftmax(TorchFunctionMode):
    """Makes what every softmax passes on off by the rounding of its terms."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.softmax:
            scores, dim = args
            return rounded_softmax(scores, dim, self.generator)
        return func(*args, **(kwargs or {}))


class NoiseTwin(Reference):
    """The reference with every sum of gradients off by as much as another order of its terms could make it.

    Reductions are off by the a-priori bound n u mean|g_i|, which holds for summation in any order (Higham,
    Accuracy and Stability of Numerical Algorithms, section 4.2); all ranks draw the same signs. What a
    module contributes to the gradient of its inputs is off by two rounding units: an engine that puts
    autograd nodes at module boundaries makes autograd add the contributions in another order. What a norm of
    one or two features passes on is rounding alone, and is off by that of its terms; so is what a batch norm
    of two rows passes on, and what it computes after a step, what a softmax passes on where one score is far
    above the others, and what a batch norm sums up where a trace has it in parts: its gradients come in with
    errors. What the twin's later tensors differ by from the reference's is the scale by which rounding alone
    may move them.

    The twin of the negative seed has the opposite errors in its reductions: where terms cancel, one of the
    two gradients changes its sign, which is all that some optimizers look at.
    """

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype, noise_seed: int) -> None:
        self.noise_seed = noise_seed
        self.generator = torch.Generator().manual_seed(noise_seed)
        self.stepped = False
        super().__init__(case, mesh, dtype)

    @override
    def rebuilt(self, case: Case, dtype: torch.dtype) -> Self:
        twin = type(self)(case, self.mesh, dtype, self.noise_seed)
        twin.stepped = self.stepped
        return twin

    @override
    def make_sync(self) -> ExplicitSync:
        self.noise = _NoisySync(self)
        return self.noise

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Also how far any order of the reductions may move each element, for bounds of single elements."""
        held = super().gradients()
        return held | {ROUNDING: {fqn: self.noise.rounding.get(fqn) for fqn in held["gradient"]}}

    @override
    def make_master_weights(self, model: nn.Module) -> MasterWeights:
        return _NoisyWeights(model, parameter_dtypes(self.case, self.facts), self.noise_seed)

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        for module in model.modules():
            module.register_forward_pre_hook(self._perturb_inputs, with_kwargs=True)
        rounded = {model.get_submodule(plan.module) for plan in self.case.tensor_parallel}
        if some_engine_multiplies_otherwise(self.case) or folds_by_strides(self.case):
            rounded |= set(filter(multiplies, model.modules()))
        if fsdp1_normalizes_otherwise(self.case, self.mesh.device.type):
            rounded |= set(filter(normalizes, model.modules()))
        if strides_are_free(self.case):
            rounded |= set(filter(convolves, model.modules()))
        if self.case.compile == "inductor":  # its fused kernels add in orders of their own
            rounded = {module for module in model.modules() if can_round(module)}
        for module in model.modules():
            if module in rounded or leaves_rounding_only(module):
                add_rounding(module, self.noise_seed, input_gradient_only=module not in rounded)
            if isinstance(module, nn.BatchNorm1d):
                module.register_forward_hook(self._round_rows)
                if rounded or self.case.compile in TRACED_BACKWARD:
                    module.register_forward_hook(partial(self._round_batch_norm, forward=bool(rounded)))
        return super().parallelize(model)

    @override
    def call_target(self, path: str) -> Callable[..., Any]:
        target = super().call_target(path)

        def call(*args: Any, **kwargs: Any) -> Any:
            with _NoisySoftmax(self.generator):
                return target(*args, **kwargs)

        return call

    @override
    def after_step(self) -> None:
        """Moves every parameter that was stepped by a rounding unit of its largest element."""
        self.stepped = True
        with torch.no_grad():
            for parameter in self.trained.values():
                if parameter.grad is not None and parameter.numel():
                    unit = torch.finfo(parameter.dtype).eps * parameter.abs().max()
                    generator = torch.Generator().manual_seed(self.noise_seed)
                    parameter.add_(unit * signs(parameter, generator))

    def _perturb_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return map_tensors(self._perturbed, args), map_tensors(self._perturbed, kwargs)

    def _round_batch_norm(
        self, module: nn.BatchNorm1d, args: tuple[torch.Tensor], output: torch.Tensor, *, forward: bool
    ) -> torch.Tensor:
        """By what the sums over all rows round; in backward only, unless ``forward``."""
        sizes, rows = centred_sizes(module, *args), output.numel() / max(output.shape[1], 1)
        units = max(1.0, rows / 2) * sizes
        if forward:
            output = self._off(module, output, units)
        return self._perturbed(output, units)

    def _off(self, module: nn.BatchNorm1d, output: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
        """``output``, off by so many rounding units of the weight."""
        weight = 1.0 if module.weight is None else column(module.weight.detach().abs(), output)
        error = torch.finfo(output.dtype).eps * units
        return output + error * weight * signs(error, self.generator)

    def _round_rows(
        self, module: nn.BatchNorm1d, args: tuple[torch.Tensor], output: torch.Tensor
    ) -> torch.Tensor:
        """By the rounding of two rows that cancel; after a step in forward, too.

        Parameters are rounded otherwise then. Rows that are close to each other are few units apart: one unit
        more decides much, and a twin in which no row happens to get one would show nothing of that.
        """
        (x,) = args
        if not cancels_rows(module, x):
            return output
        if self.stepped:
            output = self._off(module, output, centred_sizes(module, x))
        return cancelled_rows(module, x, output, self.generator)

    def _perturbed(self, tensor: torch.Tensor, units: float | torch.Tensor = 1.0) -> torch.Tensor:
        """``tensor``, whose gradient will be off by so many rounding units."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor  # a view made without gradients could not be used once its base has changed
        view = tensor.view_as(tensor)
        relative = torch.finfo(tensor.dtype).eps * units

        def perturb(gradient: torch.Tensor) -> torch.Tensor:
            return gradient + relative * gradient * signs(gradient, self.generator)

        view.register_hook(perturb)  # type: ignore[no-untyped-call]
        return view
