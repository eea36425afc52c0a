# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# fully_shard registers linear0.weight other than documented: observed Tensor[2, 2] float16, expected
# DTensor[2, 2] float32 S(0) on mesh [2]. Found with torch 2.13.0+cpu.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)
        self.activation0 = nn.ReLU()

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = self.activation0(h0)
        return h1


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
mesh = init_device_mesh(device, (2,))
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
fully_shard(
    [model.linear0, model.activation0],
    mesh=mesh,
    mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32),
)
fully_shard(model, mesh=mesh)
torch.manual_seed(1 + rank)
x0 = torch.randn(1, 2, device=device)
x0_linear0 = torch.randn(1, 2, device=device)
model(x0)
model.set_requires_gradient_sync(False)
model.linear0(x0_linear0).sum().backward()
observed = model.linear0.weight
text = f"rank {rank}: linear0.weight: expected a DTensor, observed a {type(observed).__name__}"
assert isinstance(observed, DTensor), text
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
