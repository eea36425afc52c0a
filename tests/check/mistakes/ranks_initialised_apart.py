"""Ranks draw other initial values, and each keeps its own shard of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    torch.manual_seed(dist.get_rank())
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
