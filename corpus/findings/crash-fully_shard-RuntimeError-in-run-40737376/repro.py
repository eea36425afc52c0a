# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# fully_shard raises RuntimeError: view size is not compatible with input tensor's size and stride (at least
# one dimension spans across two contiguous subspaces). Use .reshape(...) instead. Found with torch
# 2.13.0+cpu.
import os

import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)
        self.batch_norm0 = nn.BatchNorm1d(2)

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = self.batch_norm0(h0.transpose(1, 2)).transpose(1, 2)
        return h1


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
if device == "cuda":
    torch.cuda.set_device(dist.get_rank())
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
model.compile(backend="aot_eager")
unmanaged = ('linear0.weight', 'batch_norm0.weight', 'batch_norm0.bias')
by_hand = [model.get_parameter(n) for n in unmanaged]
torch.manual_seed(1 + rank)
x = torch.randn(2, 2, 2, device=device)
model(x).sum().backward()
for grad in [p.grad for p in by_hand if p.grad is not None]:
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
