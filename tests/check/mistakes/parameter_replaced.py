"""The head gets a new parameter after DDP, which reduces the old one, has been made."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model, device_mesh=mesh, find_unused_parameters=True)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return wrapped
