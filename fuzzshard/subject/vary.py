"""Changing a model as a variation says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fuzzshard.subject.blocks import blocks_of
from fuzzshard.subject.functions import SubjectError
from fuzzshard.subject.variation import Outline, Variation


def outline(model: nn.Module) -> Outline:
    """Return what variations may name."""
    blocks = blocks_of(model)
    lists: dict[str, int] = {}
    for name in blocks:
        holder = name.rpartition(".")[0]
        lists[holder] = lists.get(holder, 0) + 1
    modules = tuple(
        name
        for name, module in model.named_modules()
        if name and next(module.parameters(), None) is not None and _is_called(module)
    )
    ties = aliases(dict(model.named_parameters(remove_duplicate=False)))
    return Outline(
        modules=modules,
        wrappable=tuple(name for name in modules if not any(_splits(name, t) for t in ties)),
        blocks=tuple(blocks),
        parameters=tuple(name for name, p in model.named_parameters() if p.requires_grad),
        depth=max(lists.values(), default=0),
    )


def aliases(parameters: Mapping[str, nn.Parameter]) -> frozenset[frozenset[str]]:
    """Return the groups of names that are one parameter."""
    groups: dict[int, set[str]] = {}
    for name, parameter in parameters.items():
        groups.setdefault(id(parameter), set()).add(name)
    return frozenset(frozenset(names) for names in groups.values() if len(names) > 1)


def _splits(module: str, tie: frozenset[str]) -> bool:
    """Whether a module holds some of the names of a parameter and not all."""
    within = {name for name in tie if name.startswith(f"{module}.")}
    return bool(within) and within != tie


def _is_called(module: nn.Module) -> bool:
    return not isinstance(module, nn.ModuleList | nn.ModuleDict)


def prepare(model: nn.Module, variation: Variation) -> None:
    """Shorten and freeze a plain model, before anything wraps it."""
    if variation.depth:
        for name in {name.rpartition(".")[0] for name in blocks_of(model)}:
            blocks: Any = model.get_submodule(name)
            if isinstance(blocks, nn.ModuleList | nn.Sequential):
                del blocks[variation.depth :]
    for name in variation.frozen:
        for below, parameter in model.named_parameters(remove_duplicate=False):
            if f"{below}.".startswith(f"{name}."):
                parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SubjectError("build", "gives a model without trainable parameters")


def recompute(model: nn.Module, variation: Variation) -> None:
    """Checkpoint modules: they are computed again in the backward."""
    for name in variation.checkpointed:
        if (module := find(model, name)) is not None:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def find(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module of that name; None where the model is too short to have it."""
    with contextlib.suppress(AttributeError):
        return model.get_submodule(name)
    return None


@contextlib.contextmanager
def unsynced(module: Any) -> Iterator[None]:
    """Have backwards accumulate gradients without reducing them, if ``module`` can do that."""
    if hasattr(module, "no_sync"):
        with module.no_sync():
            yield
    elif hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)
    else:
        yield


def dtype_of(variation: Variation) -> torch.dtype | None:
    """Return the dtype that wrappers compute in, if the variation says one."""
    dtype: torch.dtype | None = getattr(torch, variation.param_dtype or "none", None)
    return dtype
