"""Norms in bfloat16 and adapters in float32 train in one group, which torch refuses."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


class Adapted(nn.Module):
    """A frozen linear layer, the norm after it, and two small layers beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).to(torch.bfloat16).requires_grad_(False)
        self.norm = nn.RMSNorm(width).to(torch.bfloat16)
        self.lora_a = nn.Linear(width, 2, bias=False)
        self.lora_b = nn.Linear(2, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        base = self.norm(self.base(x.to(torch.bfloat16)))
        return base.float() + self.lora_b(self.lora_a(x))


def build() -> nn.Module:
    return nn.Sequential(Adapted(4), Adapted(4))


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
