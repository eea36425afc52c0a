"""The loop adds gradients over ranks, which DDP has averaged before."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tiny import loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    for batch in batches:
        (loss(model(batch), batch) / len(batches)).backward()
    if isinstance(model, DistributedDataParallel):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
