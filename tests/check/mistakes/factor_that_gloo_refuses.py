"""A divide factor that is no number of ranks, which gloo cannot apply within a reduce-scatter."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh).set_gradient_divide_factor(4.0)
