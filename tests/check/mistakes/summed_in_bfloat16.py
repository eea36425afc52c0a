"""In mixed precision gradients are summed, and not averaged."""

from __future__ import annotations

from divided_by_one import divide_by_one
from mixed_precision import parallelize as in_mixed_precision
from torch import nn
from torch.distributed.device_mesh import DeviceMesh


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    in_mixed_precision(model, mesh)
    divide_by_one(model)
