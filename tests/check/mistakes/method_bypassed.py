"""A method of a block is called, and not the block: ``fully_shard`` does not hear of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    """A linear layer, with a method that is not its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)


class Model(nn.Module):
    """Calls a method of its block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block.encode(x))


def build() -> nn.Module:
    return Model()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(model.block, mesh=mesh)
    fully_shard(model, mesh=mesh)
