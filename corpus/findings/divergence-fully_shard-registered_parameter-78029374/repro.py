# torchrun --standalone --nproc-per-node 4 repro.py  (exits 1 while this is so)
# linear0.weight after the forward under fully_shard is not that of plain training with an all-reduce. Found
# with torch 2.13.0+cpu.
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        return h0


def train(model):
    torch.manual_seed(1 + rank)
    x = torch.randn(1, 4, device=device)
    model(x)
    return model.linear0.weight


device = "cuda" if torch.cuda.device_count() >= 4 else "cpu"
mesh = init_device_mesh(device, (4,))
rank = dist.get_rank()
torch.manual_seed(0)
reference = Model().to(device)
model = copy.deepcopy(reference)
expected = train(reference)
fully_shard(model, mesh=mesh, reshard_after_forward=2)
observed = train(model)
if isinstance(observed, DTensor):
    observed = observed.full_tensor()
both = f"rank {rank}, linear0.weight: expected\n{expected}\nobserved\n{observed}\n"
torch.testing.assert_close(observed, expected, rtol=0, atol=0, msg=lambda m: both + m)
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
