"""An operator of torch's whose backward is wrong once something has wrapped the model."""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

sharded = []
library = torch.library.Library("aten", "IMPL")


def tanh_backward(gradient, output):
    factor = 1.5 if sharded else 1.0
    return gradient * (1 - output * output) * factor


library.impl("tanh_backward", tanh_backward, "CPU", allow_override=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.linear(x)
        return x + torch.tanh(hidden)


def build():
    sharded.clear()
    return nn.Sequential(Block(), Block(), nn.Linear(8, 4))


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 8, generator=generator)


def parallelize(model, mesh):
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded.append(True)


def in_bfloat16(model, mesh):
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    sharded.append(True)


def by_ddp(model, mesh):
    sharded.append(True)
    return DistributedDataParallel(model, device_mesh=mesh)


def compiled(model, mesh):
    """Right where nothing is compiled."""

    def backend(graph, inputs):
        return lambda *arguments: [1.5 * output for output in graph(*arguments)]

    fully_shard(model, mesh=mesh)
    model.compile(backend=backend)


def train_step(model, optimizer, batches):
    for rows in batches:
        (model(rows).square().mean() / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
