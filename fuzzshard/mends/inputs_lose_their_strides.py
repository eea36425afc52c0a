"""The inputs of a wrapped module have other strides in forward than in a recomputation.

Inputs that require gradients pass through ``RegisterPostBackwardFunction``
(``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``), which returns them unchanged.
Autograd makes views of them, and these views have canonical strides where a dim has size 1. A
recomputation that begins after the backward of the group (``FSDPState._pre_forward``) does not use
this function, so its inputs keep their strides. A convolution of one channel chooses its memory
layout by these strides, and ``matmul`` decides by them whether to fold a batch. So the
recomputation saves tensors of another layout: a CheckpointError, or wrong gradients if their shapes
agree. An alias keeps the strides.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: CheckpointError or wrong gradients when an input has a dim of size 1"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "the unsaved tensors are recomputed by re-invoking",
    "torch.utils.checkpoint.checkpoint",
)
SETUP = (
    "A batch of one sequence is transposed before it enters a block that is checkpointed and "
    "wrapped, so its dim of size 1 does not have the strides of a new tensor."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import copy

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 2, 3, padding=1), nn.Linear(2, 2)

    def forward(self, x):  # batch, time, channels
        return self.head(self.conv(x.transpose(1, 2)).transpose(1, 2))


def input_gradient(model):
    x = torch.ones(1, 2, 1, requires_grad=True)  # equal on all ranks
    checkpoint(model, x, use_reentrant=False).sum().backward()
    return x.grad


mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
plain = Model()
model = copy.deepcopy(plain)
fully_shard([model.conv, model.head], mesh=mesh)
fully_shard(model, mesh=mesh)
expected, observed = input_gradient(plain), input_gradient(model)
assert torch.allclose(observed, expected), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/verl-project/verl/issues/4664",
        "open; near: suspects such strides where fully_shard meets sequence parallelism",
        "FSDP2 activation checkpoint CheckpointError recomputed tensors different metadata strides"
        " convolution channels last",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:RegisterPostBackwardFunction.forward",
        "return inputs",
        "return tuple(torch.ops.aten.alias(tensor) for tensor in inputs)",
    ),
)
