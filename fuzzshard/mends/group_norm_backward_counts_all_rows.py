"""The backward of a GroupNorm raises where ranks have shards of a batch.

``native_group_norm`` is told the sizes of its input. Those of a DTensor are global, so for shards
they are replaced by the sizes of what a rank has (``_adjust_group_norm_scalars`` in
torch/distributed/tensor/_ops/_math_ops.py). ``native_group_norm_backward`` is told the same sizes,
and nothing replaces them.
"""

from __future__ import annotations

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "DTensor: the backward of GroupNorm raises where its input is sharded along the batch"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Batch dim (0) is safe to shard — each sample is independent.",
    "torch/distributed/tensor/_ops/_math_ops.py, group_norm_strategy",
)
SETUP = (
    "A model with nn.GroupNorm computes with DTensors and gets a batch in shards, as "
    "fully_shard with dp_mesh_dims has it."
)
WORKAROUND = "Give the GroupNorm what is replicated, or compute it by ``local_map``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module

mesh = init_device_mesh("cpu", (2,))
model = distribute_module(nn.GroupNorm(2, 4), mesh)
x = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(0)])
model(x).to_local().sum().backward()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/184825",
        says="an open pull request that registers a rule and replaces the sizes",
        query="DTensor group_norm backward Expected dY.numel() == N * C * HxW sharded batch "
        "native_group_norm_backward",
        date="2026-11-30",
    ),
)


def apply(patch: Patch) -> None:
    """Replaces the sizes there, too."""
    import torch
    from torch.distributed.tensor import DTensor

    table = DTensor._op_dispatcher.sharding_propagator.op_to_scalar_shape_adjuster
    adjust = table[torch.ops.aten.native_group_norm.default]
    patch(table, torch.ops.aten.native_group_norm_backward.default, adjust)
