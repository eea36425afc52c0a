"""What ranks do with a model of the user's own in a training step, and scripts print as it is.

It needs nothing of ours. Annotations are never evaluated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only


def load(name: str) -> Any:
    """Import what ``module:function`` or ``path/to/file.py:function`` names, None: not there."""
    place, _, attribute = name.rpartition(":")
    module = place
    if place.endswith(".py"):
        path = os.path.abspath(place)
        module = path.replace(".", "_")  # other folders may have such a file, too
        if module not in sys.modules:
            sys.path.insert(0, os.path.dirname(path))
            spec: Any = importlib.util.spec_from_file_location(module, path)
            sys.modules[module] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(sys.modules[module])
            except BaseException:
                del sys.modules[module]
                raise
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


@dataclasses.dataclass
class Inputs:
    """The arguments of one call, of which no tensor has a graph."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def outputs_of(model: nn.Module, batch: Any) -> Any:
    """Return what ``model`` gives for a batch."""
    match batch:
        case Inputs(arguments=arguments, keywords=keywords):
            return model(*arguments, **keywords)
        case dict():
            return model(**batch)
        case tuple() | list():
            return model(*batch)
        case _:
            return model(batch)


def leaves(value: Any) -> list[Any]:
    """Return what is in a nest; outputs of ``transformers``, and dataclasses, are nests, too."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    return tree_leaves(value)


def floats(value: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors in a nest."""
    return [t for t in leaves(value) if torch.is_tensor(t) and t.is_floating_point()]


def mean_of_squares(outputs: Any, batch: Any) -> torch.Tensor:
    """Return the loss where nobody gives one: outputs may differ in their dtypes."""
    squares = [tensor.square().mean() for tensor in floats(outputs)]
    return torch.stack([square.to(squares[0].dtype) for square in squares]).sum()


class Reached(BaseException):
    """A module was reached; models may catch exceptions, so it is none of these."""


def recorded_inputs(model: nn.Module, name: str, batch: Any) -> Inputs | None:
    """Return what the module ``name`` gets first when ``model`` gets a batch, which ends there.

    Tensors that required a gradient are leaves that require one: engines act on such inputs.
    """
    seen = []

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    def record(module: nn.Module, arguments: Any, keywords: Any) -> None:
        seen.append(Inputs(*tree_map_only(torch.Tensor, leaf, (arguments, keywords))))
        raise Reached

    hook = model.get_submodule(name).register_forward_pre_hook(record, with_kwargs=True)
    with contextlib.suppress(Reached):
        outputs_of(model, batch)
    hook.remove()
    return seen[0] if seen else None


@contextlib.contextmanager
def unsynced(model: Any) -> Iterator[None]:
    """Have backwards accumulate gradients without reducing them, if ``model`` can do that."""
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model in evaluation mode, without gradients."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        yield
    for module, mode in modes.items():
        module.training = mode


def usual_optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Return what updates parameters where nobody says so."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def usual_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Any],
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    shares: Sequence[float],
    *,
    evaluates: bool,
    unsyncs: bool,
) -> None:
    """Take a step where nobody says how; each loss counts by its share."""
    if evaluates:
        with evaluating(model):
            loss_of(model, batches[0])
    for index, share in enumerate(shares):
        waits = unsyncs and index + 1 < len(shares)
        with unsynced(model) if waits else contextlib.nullcontext():
            torch.autograd.backward(loss_of(model, batches[index]) * share)
    optimizer.step()
    optimizer.zero_grad()


def average(parameters: Sequence[nn.Parameter]) -> None:
    """Average gradients over all ranks; those that some ranks lack count as zero there."""
    has = torch.tensor([float(p.grad is not None) for p in parameters])
    has = has.to(parameters[0].device)
    dist.all_reduce(has)
    for parameter, somewhere in zip(parameters, has.tolist(), strict=True):
        if somewhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())


class Batches(list):  # type: ignore[type-arg]
    """The batches of a step by their numbers; ``taken`` is told which one is looked at."""

    def __init__(self, numbered: Mapping[int, Any], taken: Callable[[int], None]) -> None:
        super().__init__(numbered.values())
        self._numbers = list(numbered)
        self._taken = taken

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __reversed__(self) -> Iterator[Any]:
        return (self[index] for index in reversed(range(len(self))))

    def __getitem__(self, index: Any) -> Any:
        chosen = super().__getitem__(index)
        if isinstance(index, slice):
            numbered = dict(zip(self._numbers[index], chosen, strict=True))
            return type(self)(numbered, self._taken)
        self._taken(self._numbers[index])
        return chosen
