# A batch of one sequence is transposed before a convolution, and the block is checkpointed.
# With fully_shard the gradient of its input is wrong.
import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 2, 3, padding=1), nn.Linear(2, 2)

    def forward(self, x):  # batch, time, channels
        return self.head(self.conv(x.transpose(1, 2)).transpose(1, 2))


def gradient_of_input(block):
    x = torch.ones(1, 2, 1, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    return x.grad.flatten().tolist()


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
block = Block()
sharded = copy.deepcopy(block)
fully_shard([sharded.conv, sharded.head], mesh=mesh)
fully_shard(sharded, mesh=mesh)
expected, observed = gradient_of_input(block), gradient_of_input(sharded)
dist.destroy_process_group()
print("gradient of the input, not wrapped:", expected)
print("gradient of the input, fully_shard:", observed)
sys.exit(not torch.allclose(torch.tensor(observed), torch.tensor(expected)))
