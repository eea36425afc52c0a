"""An optimizer scales each update to the norm of the parameter, and takes that of its shard."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Lars(torch.optim.Optimizer):
    """Gradient descent with a rate for each parameter, as LARS."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                value, gradient = local(parameter), local(parameter.grad)
                trust = (value.norm() + 0.1) / (gradient.norm() + 0.1)
                value.sub_(group["lr"] * trust * gradient)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return Lars(parameters)
