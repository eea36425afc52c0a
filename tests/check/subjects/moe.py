"""Layers of experts: a router sends each token to two of four. Some experts get no token."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Expert(nn.Module):
    """An MLP for the tokens that are sent to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Layer(nn.Module):
    """A router and its experts. All experts run, so that all take part in collectives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x)
        weights, chosen = self.router(tokens).softmax(dim=-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            row, place = (chosen == index).nonzero(as_tuple=True)
            y = y.index_add(0, row, weights[row, place, None] * expert(tokens[row]))
        return x + y


class MixtureOfExperts(nn.Module):
    """Two layers of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build() -> nn.Module:
    return MixtureOfExperts()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(6, 6, generator=generator)
