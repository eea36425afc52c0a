"""A table is drawn anew after the ranks were seeded each for itself."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


class Projected(nn.Module):
    """A fixed random projection before a linear layer."""

    projection: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(4, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(x @ self.projection))


def build() -> nn.Module:
    return Projected()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    torch.manual_seed(17 + dist.get_rank())
    model.projection.copy_(torch.randn(4, 4))
    fully_shard(model, mesh=mesh)
