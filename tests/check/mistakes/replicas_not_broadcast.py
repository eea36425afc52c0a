"""Ranks draw other initial values, and DDP is told not to give them those of rank 0."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(dist.get_rank())
    model.head.reset_parameters()
    return DistributedDataParallel(model, device_mesh=mesh, init_sync=False)
