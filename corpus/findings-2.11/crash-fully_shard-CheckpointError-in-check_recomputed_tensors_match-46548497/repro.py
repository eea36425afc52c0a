# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# fully_shard raises CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have
# different metadata than during the forward pass. tensor at position 0: saved metadata: {'shape':
# torch.Size([1, 2]), 'dtype': torch.float16, 'device': device(type='cpu')} recomputed metadata: {'shape': ...
# Found with torch 2.11.0+cu130.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint as checkpointed


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        return h0


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
mesh = init_device_mesh(device, (2,))
rank = dist.get_rank()
torch.manual_seed(0)
model = Model().to(device)
fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
torch.manual_seed(1 + rank)
x = torch.randn(1, 2, device=device)
checkpointed(model, x, use_reentrant=False).sum().backward()
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
