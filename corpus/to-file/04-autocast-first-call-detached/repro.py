# Under torch.autocast an encoder runs twice, and the first output is detached, as the target of
# self-supervised training is. With fully_shard all layers but the first one have no gradient.
import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def has_gradients(encoder):
    view, other = torch.ones(1, 4), torch.full((1, 4), 2.0)
    with torch.autocast("cpu", torch.bfloat16):
        target = encoder(view).detach()
        loss = (encoder(other) - target).square().mean()
    loss.backward()
    return {name: p.grad is not None for name, p in encoder.named_parameters()}


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
sharded = copy.deepcopy(encoder)
for layer in sharded:
    fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
expected, observed = has_gradients(encoder), has_gradients(sharded)
dist.destroy_process_group()
print("has a gradient, not wrapped:", expected)
print("has a gradient, fully_shard:", observed)
sys.exit(observed != expected)
