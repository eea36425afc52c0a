# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# embedding0.weight in the state dict under fully_shard is not that of plain training with an all-reduce:
# observed a tensor of shape [0, 0], torch.float32, expected a tensor of shape [1, 0], torch.float32. Found
# with torch 2.15.0+cu132.
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding0 = nn.Embedding(1, 1)

    def forward(self, x):
        return x


def train(model):
    torch.manual_seed(1 + rank)
    x = torch.randn(1, 1, device=device)
    model(x)
    taken = model.state_dict()
    return {n: t for n, t in taken.items()}


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
world_mesh = init_device_mesh(device, (1, 2), mesh_dim_names=("dp", "tp"))
mesh = world_mesh["dp"]
rank = mesh.get_local_rank()
group = mesh.get_group()
torch.manual_seed(0)
reference = Model().to(device)
model = copy.deepcopy(reference)
expected = train(reference)
plan = {
    "embedding0": ColwiseParallel(),
}
parallelize_module(model, world_mesh["tp"], plan)
fully_shard(model, mesh=mesh)
observed = train(model)
expected, observed = expected["embedding0.weight"], observed["embedding0.weight"]
if isinstance(observed, DTensor):
    observed = observed.full_tensor()
both = f"rank {rank}, embedding0.weight: expected\n{expected}\nobserved\n{observed}\n"
torch.testing.assert_close(observed, expected, rtol=0, atol=0, msg=lambda m: both + m)
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit
