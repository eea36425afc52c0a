"""Every rank is seeded with the same number, so that all drop out alike."""

from __future__ import annotations

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
