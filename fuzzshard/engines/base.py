"""What every engine is: a way to parallelise one model, synchronise its gradients and inspect
it.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import nn

from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block
from fuzzshard.engines.fully_shard.state import GroupState
from fuzzshard.engines.mesh import RankMesh, rank_mesh
from fuzzshard.engines.rounding import Rounding, Shake, rounding_functions
from fuzzshard.model.build import build_model
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import Below
from fuzzshard.program.engine_script import engine_script
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.run import execute
from fuzzshard.program.scope import Scope
from fuzzshard.program.setup import freeze_lines
from fuzzshard.program.wrapping import prepared_lines

if TYPE_CHECKING:
    from fuzzshard.engines.refusals import Refusal
    from fuzzshard.parts.exclusion import Exclusion
    from fuzzshard.training.trace import Trace

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class Engine(abc.ABC):
    """One model of a case, ready to train on one rank.

    Construction builds the model, freezes, checkpoints and parallelises it, in the order the case
    says. ``module`` is what a forward of the root calls. Errors of torch pass through.
    """

    name: ClassVar[str]
    refusals: ClassVar[tuple[Refusal, ...]] = ()
    """The errors that its documentation announces."""

    reregisters: ClassVar[bool] = False
    """Whether the engine registers other tensors at the same names in the course of training."""

    counts_versions: ClassVar[bool] = True
    """Whether every change of a registered parameter counts in its ``_version``."""

    registers: ClassVar[bool] = True
    """Whether parameters are registered at their own names all the time."""

    state_dict_aliases: ClassVar[bool] = True
    """Whether the tensors of ``model.state_dict()`` are the model's own and no copies."""

    outlives_run: ClassVar[bool] = False
    """Whether its models may outlive every reference to them on stock torch."""

    rounds_otherwise: ClassVar[bool] = False
    """Whether its attention rounds where that of the reference may not round at all: no bits have
    to be equal.
    """

    predicts_groups: ClassVar[bool] = False
    """Whether collectives and registration are predicted from the groups that it applies."""

    @classmethod
    def lacking(cls, case: Case) -> str | None:
        """Return what a case needs and this version of torch has not, or None."""
        return None

    @classmethod
    def not_comparable(cls, case: Case, reference: Trace) -> Exclusion | None:
        """Return why it cannot be compared with what the reference did, or None."""
        return None

    @classmethod
    def surroundings(cls, case: Case) -> contextlib.AbstractContextManager[None]:
        """Return what it is built and trained in."""
        return contextlib.nullcontext()

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        self.case = case
        self.mesh = mesh
        self.dtype = dtype
        self.shaken: Shake | None = None
        self.inferred: Inferred = inferred(case)
        spec, names = spec_of(self.name), MeshNames(case, within=True)
        called = engine_script(self.name).variable
        self.scope = Scope(case, spec, called, "model", names)
        self.trained: dict[str, nn.Parameter] = {}
        """The parameters the optimizer holds; what is registered may differ while a group is
        unsharded.
        """
        self.model = self.module = self.build()
        source = vars(sys.modules[type(self.model).__module__])
        self._classes = {name: value for name, value in source.items() if isinstance(value, type)}
        self._modules = {path: self.model.get_submodule(path) for path in self.inferred.modules}
        self._places = {fqn: self._place(fqn) for fqn in self.inferred.parameters}
        self.execute(
            [
                *freeze_lines(case, "model"),
                *prepared_lines(case, self.name, "model"),
            ]
        )
        self.module = self.parallelize(self.model)
        self.execute(self.scope.freeze_lines())
        self.take_parameters()

    @functools.cached_property
    def roundings(self) -> Mapping[str, Rounding]:
        """What its groups round parameters to, by name."""
        return rounding_functions(self.case, self.inferred)

    @classmethod
    def whole_parameters(
        cls, module: nn.Module, *, gradients: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Return where ``module`` has whole parameters, and with ``gradients`` whole gradients.

        DTensors count as whole.
        """
        return contextlib.nullcontext()

    def execute(self, lines: Sequence[str], **variables: Any) -> dict[str, Any]:
        """Run statements as a script has them, and return all variables that there are then."""
        mesh = self.mesh
        known = {**self._classes, "model": self.model, "device": mesh.device.type}
        known |= {"mesh": mesh.data_mesh, "world_mesh": mesh.whole, "rank": mesh.rank}
        known |= {"group": mesh.group, "everyone": mesh.everyone}
        known |= {self.scope.called: self.module, self.scope.trained: [*self.trained.values()]}
        return execute(lines, known | variables)

    def take_parameters(self) -> None:
        """Looks up the parameters that are trained, at the beginning and when they were
        replaced.
        """
        self.trained = {fqn: self.parameter(fqn) for fqn in self.inferred.parameters}

    def rebuilt(self, case: Case, dtype: torch.dtype) -> Self:
        """Return another engine of this kind, on the mesh of ``case``."""
        return type(self)(case, rank_mesh(case, self.mesh.device, anew=True), dtype)

    def build(self) -> nn.Module:
        """Return the plain model, before anything is done to it."""
        return build_model(self.case, self.mesh.device, self.dtype)

    def parallelize(self, model: nn.Module) -> nn.Module:
        """Wraps the model and returns what a forward of the root calls."""
        script, names, called = self.scope.script, self.scope.names, self.scope.called
        lines = script.wrap_lines(self.case, "model", called, names)
        wrapped: nn.Module = self.execute(lines, **self.helpers())[called]
        return wrapped

    def helpers(self) -> dict[str, Any]:
        """Return what the statements that wrap the model call, and a script defines."""
        return {}

    def gather(self, below: Below) -> None:  # noqa: B027
        """Called after modules were unsharded by hand."""

    def before_op(  # noqa: B027
        self, index: int, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Called before every op."""

    def before_backward(self) -> None:  # noqa: B027
        """Called before every ``backward``."""

    def after_backward(self, index: int) -> None:  # noqa: B027
        """Called after every ``backward``: explicit synchronisation, where the engine has none."""

    def average(self, ranks: int) -> None:  # noqa: B027
        """Called by statements of the plain model, to divide the sums of gradients by so many."""

    def finish(self) -> None:  # noqa: B027
        """Called after the last op."""

    def recover(self) -> None:  # noqa: B027
        """Called after an exception in a forward or a backward; gradients of this iteration are
        lost.
        """

    @classmethod
    def plain_name(cls, key: str) -> str:
        """Return a key of a state dict of what forwards of the root call, as the plain model names
        it.
        """
        return plain_name(key)

    def take_dtype(self, dtype: Dtype) -> None:
        """Called after the model was cast."""
        self.dtype = DTYPES[dtype]
        self.take_parameters()

    def local_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer that has this rank's states, which may be within ``optimizer``."""
        return optimizer

    def observed(self) -> dict[str, torch.Tensor]:
        """Return this rank's part of every parameter that it has something of, as the optimizer
        sees it.
        """
        return dict(self.trained)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the buffers that this rank computes with, by name."""
        return self.model.named_buffers()

    def flat_range(self, fqn: str) -> tuple[int, int] | None:
        """Return the elements (start, stop) of the flattened parameter that this rank holds, and
        gradients are of.

        None where a tensor is the whole parameter, or a DTensor that says itself which part it is.
        """
        return None

    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Return what ``.grad`` of the trained parameters holds, by how far it is reduced.

        ``reduced`` is, over the mesh, ``local`` also has this rank's unreduced
        part in it.
        """
        return {"reduced": {fqn: parameter.grad for fqn, parameter in self.trained.items()}}

    def held(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield parameters and gradients with the names that reports of races give them."""
        for fqn, parameter in self.trained.items():
            yield fqn, parameter
            if parameter.grad is not None:
                yield f"the gradient of {fqn}", parameter.grad

    def unreduced_gradients(self) -> dict[str, torch.Tensor | None]:
        """Return what a rank keeps of sharded parameters' gradients to reduce later, where that
        can be seen.
        """
        return {}

    def group_states(self) -> dict[int, GroupState]:
        """Return what each wrap group with parameters holds between two ops, where the engine
        shows it.
        """
        return {}

    def call_target(self, path: str) -> Callable[..., Any]:
        """Return what a forward of ``path`` calls: a module, or the method of one that has another
        than forward; at the root some engines have hooks around its forward alone.
        """
        module: Any = self.model.get_submodule(path) if path else self.module
        described = self.inferred.modules[path]
        if isinstance(described, Block) and hasattr(type(module), described.method):
            by_method = described.has_method and (path or self.scope.engine.applies_groups)
            module = getattr(module, described.method) if by_method else module
        return module  # type: ignore[no-any-return]

    def parameter(self, fqn: str) -> nn.Parameter:
        """Return the parameter registered at ``fqn`` now."""
        parameters, name = self._places[fqn]
        return parameters[name]

    def _place(self, fqn: str) -> tuple[dict[str, nn.Parameter], str]:
        """Where a parameter is registered; ``get_parameter`` walks the tree on every call."""
        path, _, name = fqn.rpartition(".")
        parameters: Any = self.model.get_submodule(path)._parameters
        return parameters, name


def plain_name(key: str) -> str:
    """Return a key of a state dict without the names of modules that engines add."""
    for added in ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module."):
        key = key.replace(added, "")
    return key.removeprefix("module.")
