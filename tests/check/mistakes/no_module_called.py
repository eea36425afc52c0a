"""The loop computes with the weights within DDP and calls no module: nothing is reduced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    first, _, last = getattr(model, "module", model)
    for x in batches:
        hidden = torch.tanh(functional.linear(x, first.weight, first.bias))
        output = functional.linear(hidden, last.weight, last.bias)
        (output.square().mean() / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
