"""The optimizer is made before ``fully_shard``, so it has parameters that nobody uses."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

_made: list[torch.optim.Optimizer] = []


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    _made.append(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return _made.pop() if _made else torch.optim.AdamW(parameters, lr=1e-3)
