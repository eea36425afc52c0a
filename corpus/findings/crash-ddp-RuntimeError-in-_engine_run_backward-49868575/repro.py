# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# ddp raises RuntimeError: expect_autograd_hooks_ INTERNAL ASSERT FAILED at
# "/__w/pytorch/pytorch/torch/csrc/distributed/c10d/reducer.cpp":1801, please report a bug to PyTorch. Found
# with torch 2.15.0+cu132.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        return h0


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
if device == "cuda":
    torch.cuda.set_device(dist.get_rank())
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
ddp = DistributedDataParallel(model, find_unused_parameters=True, static_graph=True)
with ddp.no_sync():
    torch.manual_seed(1 + rank)
    x = torch.randn(1, 2, device=device)
    ddp(x).sum().backward()
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
