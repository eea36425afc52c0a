# python repro.py  (exits 1 while this is so)
# RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans
# across two contiguous subspaces). Use .reshape(...) instead. Found with torch 2.15.0+cu132.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_module


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2)
        self.group_norm0 = nn.GroupNorm(1, 2)

    def forward(self, x):
        h0 = self.linear0(x)
        return (self.group_norm0(h0.transpose(1, 2)).transpose(1, 2), h0)


def unsharded(t):
    return t


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
torch.manual_seed(0)
model = Model()
distribute_module(model, mesh)
fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
x = torch.ones(2, 2, 2)
out = model(DTensor.from_local(x, mesh))
(unsharded(out[0]).sum() + unsharded(out[1]).sum()).backward()
dist.destroy_process_group()
