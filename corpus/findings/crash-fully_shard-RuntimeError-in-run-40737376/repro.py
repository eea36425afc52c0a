# python repro.py  (exits 1 while this is so)
# RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans
# across two contiguous subspaces). Use .reshape(...) instead. Found with torch 2.13.0+cpu.
import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2)
        self.batch_norm0 = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.batch_norm0(self.linear0(x).transpose(1, 2)).transpose(1, 2)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = Model()
model.compile(backend="aot_eager")
x = torch.ones(2, 2, 2)
model(x).sum().backward()
dist.destroy_process_group()
