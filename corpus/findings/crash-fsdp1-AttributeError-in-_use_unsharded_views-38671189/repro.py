# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# Under FullyShardedDataParallel: AttributeError: 'NoneType' object has no attribute 'data'. Found with torch
# 2.13.0+cpu.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2)
        self.linear1 = nn.Linear(2, 2)

    def forward(self, x):
        h0 = self.linear0(x)
        h1 = h0 + h0
        self.linear1(h1)
        self.linear0(x)
        return h1


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
model.linear1.requires_grad_(False)
options = dict(device_id=torch.device("cpu"), use_orig_params=True)
model.linear0 = FullyShardedDataParallel(model.linear0, **options)
model.linear1 = FullyShardedDataParallel(model.linear1, **options)
x = torch.ones(1, 2)
FullyShardedDataParallel(model, **options)(x).sum().backward()
dist.destroy_process_group()
