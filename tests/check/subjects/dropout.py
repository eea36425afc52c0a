"""A model that draws: dropout of features, and of whole branches."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A branch that is left out for some rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.dropout(torch.tanh(self.linear(x)))
        if self.training:
            branch = branch * torch.bernoulli(torch.full((len(x), 1), 0.8, device=x.device)) / 0.8
        return x + branch


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), Block(8), Block(8), nn.Dropout(0.1), nn.Linear(8, 3))


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(4, 6, generator=generator)
