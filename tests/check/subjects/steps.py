"""Training steps that are right, and that call the model in other ways than once for each batch.

The model draws, so that a forward with the numbers of another one shows.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """An encoder and a head."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def build() -> nn.Module:
    return Model()


def build_without_dropout() -> nn.Module:
    return Model(0.0)


def build_frozen() -> nn.Module:
    model = Model()
    model.encoder.requires_grad_(False)
    return model


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(4, 4, generator=generator)


def fsdp(model: nn.Module, mesh: DeviceMesh) -> None:
    for module in (model.encoder, model.head, model):
        fully_shard(module, mesh=mesh)


def ddp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh)


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def size(outputs: Tensor) -> Tensor:
    return (outputs - 1).square().mean()


def evaluated(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """Evaluate before the update and after it, once with a graph that nobody uses."""
    model.eval()
    with torch.no_grad():
        model(batches[0])
    model(batches[-1])
    model.train()
    for x in batches:
        (size(model(x)) / len(batches)).backward()
    update(optimizer)
    with torch.no_grad():
        size(model(batches[0]))


def twice(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """Two dropouts of a batch shall give alike (R-Drop)."""
    for index in range(len(batches)):
        one, two = model(batches[index]), model(batches[index])
        ((size(one) + (one - two).square().mean()) / len(batches)).backward()
    update(optimizer)


def contrasted(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """Each row is to be nearer to its own second dropout than to that of others (SimCSE)."""
    for x in reversed(batches):
        one, two = model(torch.cat([x, x])).chunk(2)
        target = torch.arange(len(x), device=x.device)
        (nn.functional.cross_entropy(one @ two.T, target) / len(batches)).backward()
    update(optimizer)


def in_pieces(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """The model itself is never called."""
    for x in batches:
        (size(model.head(model.encoder(x))) / len(batches)).backward()
    update(optimizer)


def head_alone(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """What is frozen has no graph."""
    for x in batches:
        with torch.no_grad():
            features = model.encoder(x)
        (size(model.head(features)) / len(batches)).backward()
    update(optimizer)


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """Reduce gradients once, and clip them."""
    for index, x in enumerate(batches):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(index + 1 == len(batches))
        (size(model(x)) / len(batches)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    update(optimizer)


def with_teacher(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """A mean of former values teaches, and draws nothing; it is a copy with all hooks."""
    inner = getattr(model, "module", model)
    teacher = vars(inner).setdefault("teacher", copy.deepcopy(inner).eval())
    for x in batches:
        with torch.no_grad():
            due = teacher(x)
        ((model(x) - due - 1).square().mean() / len(batches)).backward()
    update(optimizer)
    with torch.no_grad():
        for mean, parameter in zip(teacher.parameters(), inner.parameters(), strict=True):
            mean.lerp_(parameter, 0.1)


def augmented(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """Noise is drawn for each batch, of which a pass before has counted the rows."""
    count = sum(len(x) for x in batches)
    for x in batches:
        (size(model(x + torch.randn_like(x))) * len(x) / count).backward()
    update(optimizer)


def all_at_once(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    """One forward of all batches: with dropout it would draw other numbers than each alone."""
    size(model(torch.cat(batches))).backward()
    update(optimizer)
