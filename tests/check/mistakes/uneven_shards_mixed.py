"""The loop averages local gradients over ranks, and these shards have unequal numbers of rows."""

from __future__ import annotations

from typing import Any

import shards_mixed
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


class Model(nn.Module):
    """Seven rows for two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList()
        self.head = nn.Linear(4, 7, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def build() -> nn.Module:
    return Model()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(7, (2, 6), generator=generator)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    shards_mixed.parallelize(model, mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    shards_mixed.train_step(model, optimizer, batches)
