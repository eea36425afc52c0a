"""Blocks with dropout, compiled below the root or around it, and called twice for a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """A linear layer beside a skip connection, which draws."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(torch.tanh(self.linear(x)))


def build() -> nn.Module:
    return nn.Sequential(Block(), Block())


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def blocks(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model:
        block.compile(backend="aot_eager", fullgraph=True)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model, device_mesh=mesh)
    compiled: nn.Module = torch.compile(wrapped, backend="aot_eager")
    return compiled


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    for x in batches:
        one, two = model(x), model(x)
        loss = one.square().mean() + (one - two).square().mean()
        (loss / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
