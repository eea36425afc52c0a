# python repro.py  (exits 1 while this is so)
# Under DistributedDataParallel: RuntimeError: expect_autograd_hooks_ INTERNAL ASSERT FAILED at
# "/__w/pytorch/pytorch/torch/csrc/distributed/c10d/reducer.cpp":1801, please report a bug to PyTorch. Found
# with torch 2.15.0+cu132.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
ddp = DistributedDataParallel(nn.Linear(2, 2), static_graph=True)
with ddp.no_sync():
    ddp(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
