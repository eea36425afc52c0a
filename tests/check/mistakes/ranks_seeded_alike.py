"""Every rank is seeded with the same number, so that all drop out alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(1234)
    return DistributedDataParallel(model, device_mesh=mesh)


def wrap(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh)


def seeding(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    torch.manual_seed(1234)
    for x in batches:
        (model(x).square().mean() / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
