"""Saving a training, and whether one that is built anew and loads that is the same."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves, tree_map

from fuzzshard.subject.functions import Function, call
from fuzzshard.subject.record import kept

_WHOLE = "whole.pt"
_PARAMETER = "parameter "
_IN_OPTIMIZER = " in the optimizer"

States = dict[str, Any]
"""What a training goes on from: tensors on the CPU and numbers, by what they are."""


def states(
    module: nn.Module, optimizer: torch.optim.Optimizer, plain_name: Callable[[str], str]
) -> States:
    """Return all states of a training, whole ones of DTensors, for which all ranks must ask."""
    names = {p: plain_name(name) for name, p in module.named_parameters()}
    found: States = {f"{_PARAMETER}{name}": kept(p) for p, name in names.items()}
    found |= {f"buffer {plain_name(name)}": kept(b) for name, b in module.named_buffers()}
    found |= options(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            of = names.get(parameter, "a parameter that the model has not")
            for key, value in optimizer.state.get(parameter, {}).items():
                found[f"{key} of {of}{_IN_OPTIMIZER}"] = copied(value)
    for one in _kept_with(module, optimizer):
        found[f"state of the {type(one).__name__}"] = tree_map(copied, one.state_dict())
    return found


def _kept_with(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """Yield what a loop keeps as an attribute of a model or an optimizer and can save, such as a
    scaler; and schedulers of the optimizer, which know it.
    """
    for value in (*vars(module).values(), *vars(optimizer).values()):
        saves = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        if saves and not isinstance(value, nn.Module | LRScheduler):
            yield value
    for value in gc.get_objects():
        if issubclass(type(value), LRScheduler) and value.optimizer is optimizer:
            yield value  # isinstance asks a weak proxy for what may be gone


def options(optimizer: torch.optim.Optimizer) -> States:
    """Return the options of an optimizer, such as the learning rate of each group."""
    found: States = {}
    for number, group in enumerate(optimizer.param_groups):
        where = f" of group {number}" if len(optimizer.param_groups) > 1 else ""
        for key, value in group.items():
            if key != "params":
                found[f"{key}{where} of the optimizer"] = copied(value)
    return found


def copied(value: Any) -> Any:
    """Return a value that stays as it is now."""
    return kept(value) if isinstance(value, torch.Tensor) else value


def lost(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which states did not come back, those of several parameters once.

    Where parameters have another shape, ranks of another mesh have other parts of them: neither
    they nor their states can be compared.
    """
    moved = any(
        value.shape != after[name].shape
        for name, value in before.items()
        if name.startswith(_PARAMETER) and name in after
    )
    found: dict[str, list[str]] = {}
    for name, value in before.items():
        is_part = moved and (name.startswith(_PARAMETER) or name.endswith(_IN_OPTIMIZER))
        if not is_part and not same(value, after.get(name)):
            kind = re.sub(f" of .*{_IN_OPTIMIZER}$", _IN_OPTIMIZER, name)
            found.setdefault(kind, []).append(name)
    return tuple(
        names[0] if len(names) == 1 else f"{kind} (of {len(names)} parameters)"
        for kind, names in found.items()
    )


def same(value: Any, other: Any) -> bool:
    """Return whether two states are equal; a number may come back as a tensor, a tuple as a
    list.
    """
    one, two = tree_leaves(value), tree_leaves(other)
    return len(one) == len(two) and all(map(_same_leaf, one, two))


def _same_leaf(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) or isinstance(other, torch.Tensor):
        if other is None or value is None:
            return False
        a, b = (torch.as_tensor(v) for v in (value, other))
        return a.shape == b.shape and torch.equal(a.double(), b.double())
    return bool(value == other)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """How a training is saved and loaded: by ``functions`` of the user's, or else by
    ``torch.distributed.checkpoint``, in shards or ``whole`` on rank 0.
    """

    functions: Mapping[str, Function]
    whole: bool

    def save(self, module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        """Save model and optimizer."""
        folder.mkdir(exist_ok=True)
        if "save" in self.functions:
            call(self.functions["save"], module, optimizer, folder)
            return
        options = StateDictOptions(full_state_dict=self.whole, cpu_offload=self.whole)
        state = call(get_state_dict, module, optimizer, options=options)
        if not self.whole:
            call(state_dict_saver.save, _named(*state), checkpoint_id=folder)
        elif dist.get_rank() == 0:
            call(torch.save, state, folder / _WHOLE)

    def load(self, module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        """Load what :meth:`save` saved, into a model and an optimizer that were made anew."""
        if "load" in self.functions:
            call(self.functions["load"], module, optimizer, folder)
            return
        if self.whole:
            state = _named(*call(torch.load, folder / _WHOLE, weights_only=False))
        else:
            state = _named(*call(get_state_dict, module, optimizer))
            call(state_dict_loader.load, state, checkpoint_id=folder)
        call(
            set_state_dict,
            module,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(full_state_dict=self.whole),
        )


def _named(model_state: Any, optimizer_state: Any) -> dict[str, Any]:
    return {"model": model_state, "optimizer": optimizer_state}


@contextlib.contextmanager
def shared_folder(group: dist.ProcessGroup) -> Iterator[Path]:
    """Yield a folder that all ranks of this node see, which goes away at the end."""
    made: list[Any] = [None] * group.size()
    here = tempfile.mkdtemp(prefix="fuzzshard-resume-") if group.rank() == 0 else None
    dist.all_gather_object(made, here, group=group)
    try:
        yield Path(made[0])
        dist.barrier(group)
    finally:
        if here is not None:
            shutil.rmtree(here, ignore_errors=True)
