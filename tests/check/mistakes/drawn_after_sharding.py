"""Values are drawn once the model is sharded: every rank draws the same ones for its shards."""

from __future__ import annotations

import torch
from tiny import Tiny
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def build_on_meta() -> nn.Module:
    with torch.device("meta"):
        return Tiny()


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    model.to("meta")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=mesh.device_type)
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter.to_local())
