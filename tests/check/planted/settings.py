"""A model that computes otherwise once it is compiled, or computed again in the backward."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        again = torch._C._current_graph_task_id() != -1
        factor = 1.5 if torch.compiler.is_compiling() else 2.0 if again else 1.0
        return x + torch.tanh(factor * self.linear(x))


def build():
    return nn.Sequential(Block(), Block())


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)
