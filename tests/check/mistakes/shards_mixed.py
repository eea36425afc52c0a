"""The loop averages the local gradients of ranks, which are shards of different rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tiny import loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    for batch in batches:
        (loss(model(batch), batch) / len(batches)).backward()
    if isinstance(model, FSDPModule):
        for parameter in model.parameters():
            local = parameter.grad.to_local()
            dist.all_reduce(local)
            local /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
