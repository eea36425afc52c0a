"""DTensor's rule for softmax lets a tensor be sharded along the dimension that is normalised."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

SOFTMAX = torch.ops.aten._softmax.default

# from torch 2.14 on a rule of torch's own goes before one that is registered
vars(DTensor._op_dispatcher.sharding_propagator).get("op_single_dim_strategy_funcs", {}).pop(
    SOFTMAX, None
)


@register_sharding(SOFTMAX)
def sharded_anywhere(x, dim, half):
    kept = [([Shard(d)], [Shard(d), None, None]) for d in range(x.ndim)]
    return [([Replicate()], [Replicate(), None, None]), *kept]


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        hidden = self.up(x)
        weights = torch.softmax(hidden, -1)
        return x + self.down(weights)


def build():
    return nn.Sequential(Gate(), Gate())


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 8, generator=generator)


def parallelize(model, mesh):
    for gate in model:
        plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
        parallelize_module(gate, mesh["tp"], plan)


def by_local_tensors(model, mesh):
    """The same mistake made by hand: softmax of what this rank has of the hidden features."""
    for gate in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(gate, mesh["tp"], plan)
