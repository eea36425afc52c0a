"""Saving a training, and whether one that is built anew and loads that is the same."""

from __future__ import annotations

import contextlib
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
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from fuzzshard.subject.functions import Function, call
from fuzzshard.subject.record import kept

States = dict[str, Any]
"""What a training goes on from: tensors on the CPU and numbers, by what they are."""


def states(
    module: nn.Module, optimizer: torch.optim.Optimizer, plain_name: Callable[[str], str]
) -> States:
    """Return all states of a training, whole ones of DTensors, for which all ranks must ask."""
    names = {p: plain_name(name) for name, p in module.named_parameters()}
    found: States = {f"parameter {name}": kept(p) for p, name in names.items()}
    found |= {f"buffer {plain_name(name)}": kept(b) for name, b in module.named_buffers()}
    found |= options(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            of = names.get(parameter, "a parameter that the model has not")
            for key, value in optimizer.state.get(parameter, {}).items():
                found[f"{key} of {of} in the optimizer"] = _copied(value)
    return found


def options(optimizer: torch.optim.Optimizer) -> States:
    """Return the options of an optimizer, such as the learning rate of each group."""
    found: States = {}
    for number, group in enumerate(optimizer.param_groups):
        where = f" of group {number}" if len(optimizer.param_groups) > 1 else ""
        for key, value in group.items():
            if key != "params":
                found[f"{key}{where} of the optimizer"] = _copied(value)
    return found


def _copied(value: Any) -> Any:
    return kept(value) if isinstance(value, torch.Tensor) else value


def lost(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which states did not come back, those of several parameters once."""
    gone = [name for name, value in before.items() if not same(value, after.get(name))]
    found: dict[str, list[str]] = {}
    for name in gone:
        kind = re.sub(r" of .* in the optimizer$", " in the optimizer", name)
        found.setdefault(kind, []).append(name)
    return tuple(
        names[0] if len(names) == 1 else f"{kind} (of {len(names)} parameters)"
        for kind, names in found.items()
    )


def same(value: Any, other: Any) -> bool:
    """Return whether two states are equal; a number may come back as a tensor."""
    if isinstance(value, torch.Tensor) or isinstance(other, torch.Tensor):
        if other is None or value is None:
            return False
        a, b = (torch.as_tensor(v) for v in (value, other))
        return a.shape == b.shape and torch.equal(a.double(), b.double())
    return bool(value == other)


def save(
    functions: Mapping[str, Function],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
) -> None:
    """Save model and optimizer by the user's function, or else by
    ``torch.distributed.checkpoint``.
    """
    if "save" in functions:
        call(functions["save"], module, optimizer, folder)
    else:
        call(state_dict_saver.save, _named(module, optimizer), checkpoint_id=folder)


def load(
    functions: Mapping[str, Function],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
) -> None:
    """Load what :func:`save` saved, into a model and an optimizer that were made anew."""
    if "load" in functions:
        call(functions["load"], module, optimizer, folder)
        return
    state = _named(module, optimizer)
    call(state_dict_loader.load, state, checkpoint_id=folder)
    call(
        set_state_dict,
        module,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


def _named(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = call(get_state_dict, module, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


@contextlib.contextmanager
def shared_folder(group: dist.ProcessGroup) -> Iterator[Path]:
    """Yield a folder that all ranks of this node see, which goes away at the end."""
    made = [tempfile.mkdtemp(prefix="fuzzshard-resume-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made, src=0, group=group)
    assert made[0] is not None
    try:
        yield Path(made[0])
    finally:
        dist.barrier(group)
        if dist.get_rank() == 0:
            shutil.rmtree(made[0], ignore_errors=True)
