"""An MLP, the inputs of its regression and the default loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two linear layers beside a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class MLP(nn.Module):
    """Blocks between a first and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def build() -> nn.Module:
    return MLP()


def build_on_meta() -> nn.Module:
    with torch.device("meta"):
        return MLP()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(4, 6, generator=generator)
