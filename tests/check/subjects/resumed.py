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


def build_dropping_out():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def batch(step, dp_rank, dp_size):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + dp_rank))


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def optimizer_with_all(parameters):
    """An optimizer, and what a loop has beside it."""
    made = torch.optim.AdamW(parameters, lr=0.01)
    made.scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.5**step)
    made.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    return made


def step_with_all(model, optimizer, batches):
    for x in batches:
        optimizer.scaler.scale(model(x).square().mean() / len(batches)).backward()
    optimizer.scaler.step(optimizer)
    optimizer.scaler.update()
    optimizer.scheduler.step()
    optimizer.zero_grad()


def _file(folder):
    return os.path.join(folder, f"{dist.get_rank()}.pt")


def save(model, optimizer, folder):
    torch.save([model.state_dict(), optimizer.state_dict()], _file(folder))


def load(model, optimizer, folder):
    model_state, optimizer_state = torch.load(_file(folder), weights_only=False)
    model.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)


def load_own_shard(model, optimizer, folder):
    """Takes what this rank saved for what it needs in another mesh."""
    for name, saved in torch.load(_file(folder), weights_only=False)[0].items():
        if hasattr(saved, "to_local"):
            here, there = model.state_dict()[name].to_local(), saved.to_local()
            here.view(-1)[: there.numel()].copy_(there.view(-1))


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


def _all_of(optimizer):
    return [optimizer, optimizer.scheduler, optimizer.scaler]


def save_all(model, optimizer, folder):
    states = [each.state_dict() for each in (model, *_all_of(optimizer))]
    torch.save([*states, torch.get_rng_state()], _file(folder))


def load_all(model, optimizer, folder, without=None):
    *states, random = torch.load(_file(folder), weights_only=False)
    for each, state in zip((model, *_all_of(optimizer)), states, strict=True):
        if without is None or each is not getattr(optimizer, without, None):
            each.load_state_dict(state)
    if without != "random":
        torch.set_rng_state(random)


def load_without_scheduler(model, optimizer, folder):
    load_all(model, optimizer, folder, "scheduler")


def load_without_scaler(model, optimizer, folder):
    load_all(model, optimizer, folder, "scaler")


def load_without_random_state(model, optimizer, folder):
    load_all(model, optimizer, folder, "random")
