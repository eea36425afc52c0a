"""What one training of one model leaves on one rank: tensors on the CPU, in the order of time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten

from fuzzshard.subject.names import module_of
from fuzzshard.subject.report import Kind

Named = dict[str, torch.Tensor | None]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a tensor was seen; ``step`` is -1 before training.

    ``microbatch`` counts those of all ranks within the step, -1: outside of one.
    """

    step: int
    kind: Kind
    name: str
    microbatch: int = -1


@dataclasses.dataclass
class Record:
    """Tensors by where they were seen, and the dtypes that modules computed in."""

    tensors: dict[Place, torch.Tensor | None] = dataclasses.field(default_factory=dict)
    dtypes: set[torch.dtype] = dataclasses.field(default_factory=set)
    aliases: frozenset[frozenset[str]] = frozenset()
    num_updates: list[int] = dataclasses.field(default_factory=list)

    def add(self, step: int, kind: Kind, tensors: Named, microbatch: int = -1) -> None:
        """Keep ``tensors`` as they are now."""
        for name, tensor in tensors.items():
            place = Place(step, kind, name, microbatch)
            self.tensors[place] = None if tensor is None else kept(tensor)

    def of(self, kind: Kind) -> dict[Place, torch.Tensor | None]:
        """Return the tensors of one kind."""
        return {place: t for place, t in self.tensors.items() if place.kind == kind}


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU; of a DTensor, of the whole of it, for which all ranks must ask."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.to("cpu", copy=True)


def floats(value: Any) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors in a nest of tensors."""
    for leaf in tree_flatten(_plain(value))[0]:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            yield leaf


def _plain(value: Any) -> Any:
    """Dataclasses and outputs of ``transformers`` as dicts, which pytrees know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    return value


def seed_everything(seed: int) -> None:
    """Seed every generator that a model may draw from."""
    random.seed(seed)
    torch.manual_seed(seed)  # every device
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(seed % 2**32)


class Forwards:
    """Watches the forwards of a model: seeds each one, and keeps what its modules give.

    ``first`` is the number of the first forward of a step among those of all ranks, so that a
    forward draws the same numbers on whatever rank it runs. What is computed again in a backward
    is not kept, nor what is while it is ``paused``. ``inside`` is the module that runs, with its
    hooks; after it the module that holds it.
    """

    def __init__(
        self, model: nn.Module, plain_name: Callable[[str], str], record: Record, seed: int
    ) -> None:
        self.record = record
        self.seed = seed
        self.first = 0
        self.step = 0
        self.number = 0
        self.paused = False
        self.inside = ""
        self._running = False
        self._seen: Named = {}
        model.register_forward_pre_hook(self._begin, prepend=True)
        for name, module in model.named_modules():
            if plain := plain_name(name):
                module.register_forward_pre_hook(self._entering(plain), prepend=True)
                module.register_forward_hook(self._keeping(plain))
        model.register_forward_hook(self._end)

    def begin_step(self, step: int, first: int) -> None:
        """Count the forwards of another step, from 0."""
        self.step, self.first, self.number = step, first, 0

    def _begin(self, _module: nn.Module, _arguments: Any) -> None:
        if self.paused:
            return
        seed_everything(self.seed * 1_000_003 + self.step * 10_007 + self.first + self.number)
        self._running, self._seen, self.inside = True, {}, ""

    def _entering(self, name: str) -> Callable[[nn.Module, Any], None]:
        def enter(_module: nn.Module, _arguments: Any) -> None:
            self.inside = name

        return enter

    def _keeping(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_module: nn.Module, _arguments: Any, output: Any) -> None:
            self.inside = module_of(name)
            if self._running:
                self._keep(name, output)

        return keep

    def _keep(self, name: str, output: Any) -> None:
        for index, tensor in enumerate(floats(output)):
            self.record.dtypes.add(tensor.dtype)
            label, calls = (f"{name}[{index}]" if index else name), 1
            while label in self._seen:
                calls += 1
                label = f"{name} (call {calls})" + (f"[{index}]" if index else "")
            copy = tensor.detach().clone()
            self._seen[label] = copy

    def _end(self, _module: nn.Module, _arguments: Any, output: Any) -> None:
        if not self._running:
            return
        self._running, self.inside = False, ""
        for index, tensor in enumerate(floats(output)):
            self.record.dtypes.add(tensor.dtype)
            self._seen[f"output[{index}]" if index else "output"] = tensor.detach().clone()
        self.record.add(self.step, "outputs", self._seen, self.first + self.number)
        self._seen = {}
        self.number += 1
