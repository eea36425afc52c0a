"""All microbatches run within DDP's ``no_sync``, the last one too."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from tiny import loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    parallel = isinstance(model, DistributedDataParallel)
    with model.no_sync() if parallel else nullcontext():
        for batch in batches:
            (loss(model(batch), batch) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
