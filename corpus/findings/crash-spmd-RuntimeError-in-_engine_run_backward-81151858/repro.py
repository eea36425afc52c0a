# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# Under spmd: RuntimeError: view size is not compatible with input tensor's size and stride (at least one
# dimension spans across two contiguous subspaces). Use .reshape(...) instead. Found with torch 2.15.0+cu132.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import DataParallelMeshDims, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_module


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)
        self.group_norm0 = nn.GroupNorm(1, 2)

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = self.group_norm0(h0.transpose(1, 2)).transpose(1, 2)
        return (h1, h0)


def unsharded(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
mesh = init_device_mesh(device, (2,), mesh_dim_names=("shard",))
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
distribute_module(model, mesh)
fully_shard(
    model,
    mesh=mesh,
    dp_mesh_dims=DataParallelMeshDims(shard="shard"),
    mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16),
)
torch.manual_seed(1 + rank)
x = torch.randn(2, 2, 2, device=device)
out = model(DTensor.from_local(x, mesh))
loss = unsharded(out[0]).sum() + unsharded(out[1]).sum()
loss.backward()
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
