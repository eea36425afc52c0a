# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# Under fully_shard: state dict has the wrong shape or dtype (0.weight): observed a tensor of shape [0, 0],
# torch.float32, expected a tensor of shape [1, 0], torch.float32. Found with torch 2.15.0+cu132.
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

world_mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
mesh = world_mesh["dp"]
rank = mesh.get_local_rank()
torch.manual_seed(0)
reference = nn.Sequential(nn.Embedding(1, 1))
model = copy.deepcopy(reference)
expected = (reference.state_dict()).get("0.weight")
parallelize_module(model, world_mesh["tp"], {"0": ColwiseParallel()})
fully_shard(model, mesh=mesh)
observed = (model.state_dict()).get("0.weight").full_tensor()
both = f"rank {rank}, 0.weight: expected\n{expected}\nobserved\n{observed}\n"
# A difference of up to atol could be rounding: sums in another order.
torch.testing.assert_close(observed, expected, rtol=1e-4, atol=1e-5, msg=lambda m: both)
dist.destroy_process_group()
