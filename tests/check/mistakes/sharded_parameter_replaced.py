"""The head gets a new parameter after ``fully_shard``: a whole one, where shards are due."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.head.weight = nn.Parameter(model.head.weight.full_tensor().detach().clone())
