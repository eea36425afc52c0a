# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# fully_shard raises RuntimeError: setStorage: sizes [2, 2], strides [1, 2], storage offset 0, and itemsize 4
# requiring a storage size of 16 are out of bounds for storage of size 0. Found with torch 2.11.0+cu130.
import dataclasses
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclasses.dataclass
class Block0Output:
    out0: torch.Tensor


class Block0(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = self.linear0(h0)
        return Block0Output(h1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block0 = Block0()

    def forward(self, x):
        h0 = self.block0(x)
        return h0.out0


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
mesh = init_device_mesh(device, (2,))
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
fully_shard(model.block0, mesh=mesh)
fully_shard(model, mesh=mesh)
model.compile(backend="aot_eager")
torch.manual_seed(1 + rank)
x = torch.randn(1, 2, device=device)
model(x).sum().backward()
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
