"""Ranks have other numbers of tokens, and each takes the mean over its own."""

from __future__ import annotations

from typing import Any

import torch
from tiny import loss
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(8, (1, 4 + 5 * dp_rank), generator=generator)


def loss_weight(tokens: Tensor) -> float:
    """The number of tokens that are predicted."""
    return float(tokens[:, 1:].numel())


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    count = sum(loss_weight(tokens) for tokens in batches)  # of this rank alone
    for tokens in batches:
        (loss(model(tokens), tokens) * loss_weight(tokens) / count).backward()
    optimizer.step()
    optimizer.zero_grad()
