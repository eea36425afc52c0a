"""``fully_shard`` in bfloat16, for the outermost repeated blocks of a model and its root."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found: list[str] = []
    for name, module in model.named_modules():
        repeats = isinstance(module, nn.ModuleList | nn.Sequential)
        if repeats and name and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
            for block in module.children():
                fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
