"""The model that mistakes are made with: small, with blocks, and parameters of the root."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A linear layer beside a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Tiny(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(Block(4) for _ in range(2))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 8, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Tied(Tiny):
    """The head has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight


def build() -> nn.Module:
    return Tiny()


def build_tied() -> nn.Module:
    return Tied()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(8, (2, 6), generator=generator)


def loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of the next token."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
