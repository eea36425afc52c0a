"""A model that keeps a buffer out of its state dict, and ways to load it."""

import os

import torch
import torch.distributed as dist
from torch import nn


class Scaled(nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4, bias=False)
        self.register_buffer("scale", torch.ones(8), persistent=persistent)

    def forward(self, x):
        self.scale = self.scale * 1.25
        return self.second(torch.tanh(self.first(x)) * self.scale)


def build():
    return Scaled(persistent=True)


def build_forgetful():
    return Scaled(persistent=False)


def batch(step, dp_rank, dp_size):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + dp_rank))


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def _file(folder):
    return os.path.join(folder, f"{dist.get_rank()}.pt")


def save(model, optimizer, folder):
    torch.save([model.state_dict(), optimizer.state_dict()], _file(folder))


def load(model, optimizer, folder):
    model_state, optimizer_state = torch.load(_file(folder), weights_only=False)
    model.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)


def load_model_alone(model, optimizer, folder):
    model.load_state_dict(torch.load(_file(folder), weights_only=False)[0])


def load_optimizer_alone(model, optimizer, folder):
    optimizer.load_state_dict(torch.load(_file(folder), weights_only=False)[1])


def load_without_steps(model, optimizer, folder):
    load(model, optimizer, folder)
    for state in optimizer.state.values():
        state["step"].zero_()


def load_with_another_rate(model, optimizer, folder):
    load(model, optimizer, folder)
    optimizer.param_groups[0]["lr"] = 0.02
