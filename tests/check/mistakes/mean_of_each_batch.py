"""Batches have other numbers of tokens, and the loop takes the mean over each batch's own."""

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


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    for tokens in batches:
        (loss(model(tokens), tokens) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def weigh(tokens: Tensor) -> float:
    """The number of tokens that are predicted."""
    return float(tokens[:, 1:].numel())
