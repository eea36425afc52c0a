"""In mixed precision gradients are summed, and not averaged."""

from __future__ import annotations

from mixed_precision import parallelize as in_mixed_precision
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    in_mixed_precision(model, mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
