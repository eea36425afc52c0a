"""Names in the checkpoint have a prefix, and ``strict=False`` keeps quiet about it."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    checkpoint = {f"_orig_mod.{name}": v.clone() for name, v in model.state_dict().items()}
    torch.manual_seed(1)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    model.load_state_dict(checkpoint, strict=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
