# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# fsdp1 raises AttributeError: 'NoneType' object has no attribute 'data'. Found with torch 2.13.0+cpu.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)
        self.linear1 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = h0 + h0
        h2 = self.linear1(h1)
        with torch.no_grad():
            h3 = self.linear0(x)
        h4 = h1 + h3
        return h4


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
if device == "cuda":
    torch.cuda.set_device(dist.get_rank())
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
model.linear1.requires_grad_(False)
options = dict(device_id=torch.device(device), use_orig_params=True)
model.linear0 = FullyShardedDataParallel(model.linear0, **options)
model.linear1 = FullyShardedDataParallel(model.linear1, **options)
fsdp = FullyShardedDataParallel(model, **options)
torch.manual_seed(1 + rank)
x = torch.randn(1, 2, device=device)
fsdp(x).sum().backward()
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
