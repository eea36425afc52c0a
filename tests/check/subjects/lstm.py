"""A language model of two LSTM layers in one module, which keeps its weights flat."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Recurrent(nn.Module):
    """Tokens to logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.lstm(self.embedding(tokens))
        return self.head(hidden), state


def build() -> nn.Module:
    return Recurrent()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(11, (2, 5), generator=generator)


def loss(outputs: tuple[Tensor, tuple[Tensor, Tensor]], tokens: Tensor) -> Tensor:
    logits = outputs[0]
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
