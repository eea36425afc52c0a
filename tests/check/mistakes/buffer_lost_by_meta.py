"""``to_empty`` leaves a buffer without values that no checkpoint has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


class Scaled(nn.Module):
    """A linear layer whose inputs are scaled by a table."""

    scales: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.arange(1.0, 5.0), persistent=False)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scales)


def build() -> nn.Module:
    return Scaled()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    values = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("meta")
    model.to_empty(device=mesh.device_type)
    model.scales.zero_()  # what memory holds is not the same in every run
    model.load_state_dict(values)
    fully_shard(model, mesh=mesh)
