"""What a training run can save, corrupt and load: parameters, buffers and the state of the
optimizer.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.utils._pytree import tree_map_only

from fuzzshard.engines.base import Engine
from fuzzshard.model.names import seed_of

if TYPE_CHECKING:
    from fuzzshard.training.trainer import Trainer


class Saved(Protocol):
    """A saved model and optimizer."""

    def load(self, trainer: Trainer, *, assign: bool) -> None:
        """Loads both into what ``trainer`` trains now."""

    def remove(self) -> None:
        """Removes what was saved."""


class InMemory:
    """Copies of ``model.state_dict()`` and ``optimizer.state_dict()``; of DTensors, of the local
    shards.
    """

    def __init__(self, trainer: Trainer, *, may_assign: bool) -> None:
        self.may_assign = may_assign
        self.model = _copied(trainer.engine.module.state_dict())
        self.optimizer = _copied(trainer.optimizer.state_dict())

    def load(self, trainer: Trainer, *, assign: bool) -> None:
        """With ``assign`` parameters become other tensors, and the optimizer is made anew to hold
        them.
        """
        assign = assign and self.may_assign
        trainer.engine.module.load_state_dict(_copied(self.model), assign=assign)
        if assign:
            trainer.engine.take_parameters()
            trainer.make_optimizer()
        trainer.optimizer.load_state_dict(_copied(self.optimizer))

    def remove(self) -> None:
        """Nothing is left behind."""


class OnDisk:
    """A checkpoint that ``torch.distributed.checkpoint`` writes into a directory all ranks
    share.
    """

    def __init__(self, trainer: Trainer) -> None:
        mesh = trainer.engine.mesh
        self.group = mesh.group if trainer.case.mesh.tensor is None else mesh.everyone
        self.leads = dist.get_rank(self.group) == 0
        name = [tempfile.mkdtemp(prefix="fuzzshard-checkpoint-") if self.leads else ""]
        dist.broadcast_object_list(name, dist.get_global_rank(self.group, 0), self.group)
        self.directory = name[0]

    def write(self, trainer: Trainer) -> None:
        """Saves what ``trainer`` has now."""
        writer = FileSystemWriter(self.directory, sync_files=False)
        state = self._state_dicts(trainer)
        with _original_errors():
            state_dict_saver.save(state, storage_writer=writer, process_group=self.group)

    def load(self, trainer: Trainer, *, assign: bool) -> None:
        """In place, into the tensors of the state dicts; with ``assign`` into copies that are
        handed over.
        """
        state = self._state_dicts(trainer)
        if assign:
            state = _copied(state)
        reader = FileSystemReader(self.directory)
        with _original_errors():
            state_dict_loader.load(state, storage_reader=reader, process_group=self.group)
        if assign:
            set_model_state_dict(trainer.engine.module, state["model"])
            set_optimizer_state_dict(trainer.engine.module, trainer.optimizer, state["optimizer"])

    def remove(self) -> None:
        """Removes the directory; the rank that made it does."""
        if self.leads:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _state_dicts(self, trainer: Trainer) -> dict[str, Any]:
        """The model's comes first: it reshards, and that of the optimizer finds sharded parameters
        only.
        """
        module = trainer.engine.module
        model = get_model_state_dict(module)
        return {"model": model, "optimizer": get_optimizer_state_dict(module, trainer.optimizer)}


@contextlib.contextmanager
def _original_errors() -> Iterator[None]:
    """Raises what went wrong on the first rank, not the ``BaseException`` that gathers all ranks'
    errors.
    """
    try:
        yield
    except CheckpointException as gathered:
        raise gathered.failures[min(gathered.failures)][0] from None


def _copied(state: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), state)


class States:
    """What a run has kept of its state: the state dict it took, and what it saved last."""

    def __init__(self) -> None:
        self.taken: dict[str, torch.Tensor] = {}
        self._saved: Saved | None = None

    def take(self, engine: Engine) -> None:
        """Keeps the state dict; its tensors are to follow every later change in place."""
        self.taken = engine.state_dict()

    def save(self, trainer: Trainer, via: str) -> None:
        """Saves model and optimizer; the reference needs no file to remember."""
        self.remove()
        if via == "dcp" and trainer.engine.is_judged:
            self._saved = checkpoint = OnDisk(trainer)
            checkpoint.write(trainer)
        else:
            self._saved = InMemory(trainer, may_assign=via == "state_dict")

    def load(self, trainer: Trainer, *, assign: bool) -> None:
        """Loads what was saved last."""
        assert self._saved is not None
        self._saved.load(trainer, assign=assign)

    def remove(self) -> None:
        """Removes what was saved."""
        if self._saved is not None:
            self._saved.remove()
            self._saved = None


def zero(trainer: Trainer) -> None:
    """Zeroes every parameter and optimizer state in place."""
    with torch.no_grad():
        for parameter in trainer.engine.module.parameters():
            parameter.zero_()
        for state in trainer.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()


def rebuild(trainer: Trainer, index: int) -> None:
    """Builds the model with other initial values, and the optimizer.

    What the ops before ``index`` have set applies to the new model too.
    """
    old = trainer.engine
    other = msgspec.structs.replace(trainer.case, seed=seed_of(trainer.case.seed, "rebuilt"))
    engine = trainer.engine = old.rebuilt(other, trainer.first_dtype)
    for op in trainer.case.schedule[:index]:
        if op.runs_on(trainer.rank):
            op.run_again(engine)
    for fqn, parameter in old.trained.items():
        engine.parameter(fqn).requires_grad_(parameter.requires_grad)
    trainer.make_optimizer()


def optimizer_states(trainer: Trainer) -> Iterator[tuple[str, torch.Tensor | None]]:
    """The state that the optimizer has of every parameter it holds, or None; by parameter and
    name.
    """
    optimizer = trainer.engine.local_optimizer(trainer.optimizer)
    names = trainer.case.optimizer.states
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for fqn, parameter in trainer.engine.trained.items():
        if id(parameter) in held:
            state = optimizer.state.get(parameter, {})
            yield from ((f"{name} of {fqn}", state.get(name)) for name in names)
