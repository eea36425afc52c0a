"""Models that a mistake needs: those of ``tiny.py`` would not show it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def floats(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


class Attending(nn.Module):
    """Attention with biases between an embedding and a head.

    A bias of keys adds the same to all scores of a query, so softmax does not hear of it: its
    gradient is nothing but rounding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.query = nn.Linear(4, 4)
        self.key = nn.Linear(4, 4)
        self.value = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return self.head(x + scores.softmax(dim=-1) @ self.value(x))


class Scaled(nn.Module):
    """A linear layer whose inputs are scaled by a table."""

    scales: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.arange(1.0, 5.0), persistent=False)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scales)


class Projected(nn.Module):
    """A fixed random projection before a linear layer."""

    projection: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(4, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(x @ self.projection))


class Encoder(nn.Module):
    """A linear layer, with a method that is not its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)


class Encoding(nn.Module):
    """Calls a method of its block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Encoder()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block.encode(x))


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


class Uneven(nn.Module):
    """Seven rows for two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList()
        self.head = nn.Linear(4, 7, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def sevens(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(7, (2, 6), generator=generator)


def dropping_out() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def without_blocks() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def adapters() -> nn.Module:
    return nn.Sequential(Adapted(4), Adapted(4))


class Averaged(nn.Module):
    """A linear layer with a moving average of its weight."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(4, 4)
        self.register_buffer("average", self.projection.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x)
