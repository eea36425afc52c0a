"""One rank leaves out a microbatch, which is accumulated without reduction by the others."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from tiny import loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> None:
    parallel = isinstance(model, DistributedDataParallel)
    count = len(batches)
    if parallel and dist.get_rank():
        batches = batches[1:]
    for index, batch in enumerate(batches):
        waits = parallel and index + 1 < len(batches)
        with model.no_sync() if waits else nullcontext():
            (loss(model(batch), batch) / count).backward()
    optimizer.step()
    optimizer.zero_grad()
