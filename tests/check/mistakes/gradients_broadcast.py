"""A loop of one's own, where every rank gets the gradients of rank 0."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tiny import loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    model.ranks = mesh.size()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    for batch in batches:
        (loss(model(batch), batch) / len(batches)).backward()
    if hasattr(model, "ranks"):
        for parameter in model.parameters():
            dist.broadcast(parameter.grad, src=0)
    optimizer.step()
    optimizer.zero_grad()
