"""``fully_shard`` in bfloat16, for the blocks of a model and its root."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fuzzshard.subject.vary import blocks_of


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*blocks_of(model).values(), model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
