"""A small model with blocks and a tie, as a user would give it."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(Block(8) for _ in range(depth))
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build():
    return Model()


def build_two_blocks():
    return Model(2)


def smaller(size):
    return Model(size)


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(100 * step + dp_rank)
    return torch.randint(0, 20, (2, 5), generator=generator)


def loss(outputs, tokens):
    return F.cross_entropy(outputs.flatten(0, 1), tokens.flatten())


def train_step(model, optimizer, batches):
    for tokens in batches:
        (loss(model(tokens), tokens) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def loss_weight(tokens):
    return float(tokens.numel())


def parallelize(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
