"""A divide factor set on the root is one of the root's own parameters, not of the blocks'."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.set_gradient_divide_factor(4.0)
    model.set_force_sum_reduction_for_comms(True)
