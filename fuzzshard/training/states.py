"""What a training run has saved, and what it has of its optimizer's states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from fuzzshard.engines.base import Engine
from fuzzshard.temporary import TemporaryFolder

if TYPE_CHECKING:
    from fuzzshard.training.trainer import Trainer


class States:
    """What a run has kept of its state: the state dict it took, and what it saved last."""

    def __init__(self, engine: Engine) -> None:
        mesh = engine.mesh
        together = engine.scope.engine.in_stages or engine.case.mesh.tensor is not None
        self._group = mesh.everyone if together else mesh.group
        self._name = engine.plain_name
        self._saving = mesh.saving
        self._folder: TemporaryFolder | None = None
        self.saved: dict[str, Any] = {"averaged": None}
        self.taken: dict[str, torch.Tensor] = {}
        """Its tensors are to follow every later change in place."""

    def new_folder(self) -> str:
        """Make a directory for a checkpoint, which all ranks that save it share."""
        self.remove()
        if dist.get_rank(self._group) == 0:
            self._folder = TemporaryFolder()
        name = ["" if self._folder is None else str(self._folder.path)]
        dist.broadcast_object_list(name, group=self._group, group_src=0)
        return name[0]

    def saving_group(self) -> dist.ProcessGroup:
        """Return the process group of asynchronous saves."""
        assert self._saving is not None
        return self._saving

    def keep(self, variables: dict[str, Any]) -> None:
        """Keep what statements have assigned."""
        kept = ("saved", "folder", "planner", "saving", "averaged", "norm")
        self.saved |= {name: variables[name] for name in kept if name in variables}
        if "taken" in variables:
            taken = variables["taken"].items()
            self.taken = {self._name(name): tensor for name, tensor in taken}

    def finish(self) -> None:
        """Wait for what is still being saved."""
        if "saving" in self.saved:
            self.saved["planner"].gone_on.set()
            self.saved["saving"].result()

    def remove(self) -> None:
        """Remove the directory; the rank that made it does."""
        if self._folder is not None:
            self._folder.remove()


@contextlib.contextmanager
def original_errors() -> Iterator[None]:
    """Raise what went wrong on the first rank, not the ``BaseException`` that gathers all ranks'
    errors.
    """
    try:
        yield
    except CheckpointException as gathered:
        raise gathered.failures[min(gathered.failures)][0] from None


def optimizer_states(trainer: Trainer) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield the state that an optimizer has of every parameter it holds, or None; by parameter and
    name.
    """
    for whole, spec in zip(trainer.optimizers, trainer.case.optimizer.each.values(), strict=True):
        optimizer = trainer.engine.local_optimizer(whole)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for fqn, parameter in trainer.engine.trained.items():
            if id(parameter) in held:
                state = optimizer.state.get(parameter, {})
                yield from ((f"{name} of {fqn}", state.get(name)) for name in spec.states)
