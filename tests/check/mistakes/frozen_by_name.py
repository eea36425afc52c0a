"""The base is frozen by a name that the head has, too: the plain model trains it."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith("h"):
            parameter.requires_grad_(False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
