# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# Under fully_shard: gradient of a parameter is None where plain training has one (linear1.weight). Found with
# torch 2.15.0+cu132.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)
        self.linear1 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = self.linear1(x)
        h2 = self.linear1(h0)
        return h2


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
mesh = init_device_mesh(device, (2,))
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
fully_shard(model.linear1, mesh=mesh)
weight = model.linear1.weight
torch.manual_seed(1 + rank)
x = torch.randn(1, 2, device=device)
with torch.autocast(device, torch.float16):
    loss = model(x).sum()
loss.backward()
assert weight.grad is not None, f"rank {rank}: linear1.weight: expected a gradient, observed None"
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
