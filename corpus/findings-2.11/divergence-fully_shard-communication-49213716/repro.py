# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# fully_shard in the last op here (all-gathers): observed 1, expected 0. Found with torch 2.11.0+cu130.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.activation0 = nn.ReLU()
        self.linear0 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.activation0(x)
        h1 = self.linear0(h0)
        return h1


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
mesh = init_device_mesh(device, (2,))
rank = dist.get_rank()

calls = []


def recorded(collective):
    def call(*args, **kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        calls.append((max(t.numel() for t in tensors), str(tensors[0].dtype)[6:]))
        return collective(*args, **kwargs)

    return call


for name in ('all_gather_into_tensor', 'all_gather_single'):
    if hasattr(dist, name):
        setattr(dist, name, recorded(getattr(dist, name)))

torch.manual_seed(0)
model = Model().to(device)
checkpoint(model.linear0)
fully_shard([model.activation0, model.linear0], mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh)
for module in model.modules():
    if isinstance(module, FSDPModule):
        module.set_is_last_backward(False)
model.set_reshard_after_backward(False)
torch.manual_seed(1 + rank)
x = torch.randn(1, 2, device=device)
loss2 = model(x).sum()
loss2.backward()
calls.clear()
model(x)
text = f"rank {rank}: expected 0 all-gathers, observed {calls}"
assert len(calls) == 0, text
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
