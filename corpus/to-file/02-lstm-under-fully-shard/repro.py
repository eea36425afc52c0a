# An nn.LSTM (or nn.GRU, nn.RNN) is wrapped by fully_shard and trained on a GPU.
# Every forward computes with the weights that the module had first, whatever the optimizer does.
import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if not torch.cuda.is_available():
    print("This needs a GPU with cuDNN.")
    sys.exit(2)


def losses(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = torch.ones(3, 2, 4, device="cuda")
    result = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        result.append(round(loss.item(), 4))
    return result


dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
lstm = nn.LSTM(4, 4, device="cuda")
sharded = copy.deepcopy(lstm)
fully_shard(sharded, mesh=init_device_mesh("cuda", (1,)))
expected, observed = losses(lstm), losses(sharded)
dist.destroy_process_group()
print("losses, not wrapped:", expected)
print("losses, fully_shard:", observed)
sys.exit(observed != expected)
