"""The loop turns gradient synchronisation off for microbatches and forgets the last one."""

from __future__ import annotations

from typing import Any

import torch
from tiny import loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    for index, batch in enumerate(batches):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(index == len(batches))  # the last is one less
        (loss(model(batch), batch) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
