"""The loop has an optimizer that is made before ``fully_shard``."""

from __future__ import annotations

from typing import Any

import torch
from tiny import loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

_made: dict[str, torch.optim.Optimizer] = {}


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    _made["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fully_shard(model, mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    if isinstance(model, FSDPModule):
        optimizer = _made["optimizer"]
    for batch in batches:
        (loss(model(batch), batch) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
