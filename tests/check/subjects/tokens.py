"""Ranks with other numbers of tokens, and a loop that gives each token the same weight."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


def build() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 11))


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(11, (1, 4 + 3 * dp_rank), generator=generator)


def loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean over this batch's tokens but the first."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def loss_weight(tokens: Tensor) -> float:
    """The number of tokens that are predicted."""
    return float(tokens[:, 1:].numel())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> Tensor:
    """Count tokens over all ranks. Ranks' gradients are averaged, so each is worth the world."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    device = batches[0].device
    count = torch.tensor(sum(loss_weight(tokens) for tokens in batches), device=device)
    if ranks > 1:
        dist.all_reduce(count)
    total = torch.zeros((), device=device)
    for tokens in batches:
        error = loss(model(tokens), tokens) * loss_weight(tokens) / count
        (error * ranks).backward()
        total += error.detach()
    if ranks > 1:
        dist.all_reduce(total)
    optimizer.step()
    optimizer.zero_grad()
    return total
