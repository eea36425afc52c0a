# Two batches run before one backward, checkpointed, and of the first only hidden states enter the
# loss. With fully_shard the next forward uses the head from before the optimizer's step.
import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden), hidden


def output_after_a_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(1, 4)
    _, hidden = checkpoint(model, x, use_reentrant=False)
    logits, other = checkpoint(model, 2 * x, use_reentrant=False)
    (hidden.sum() + logits.sum() + other.sum()).backward()
    optimizer.step()
    return model(x)[0].item()


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
model = Model()
sharded = copy.deepcopy(model)
fully_shard(sharded.head, mesh=mesh)
fully_shard(sharded, mesh=mesh)
expected, observed = output_after_a_step(model), output_after_a_step(sharded)
dist.destroy_process_group()
print(f"output after the step, not wrapped: {expected:.4f}")
print(f"output after the step, fully_shard: {observed:.4f}")
sys.exit(abs(observed - expected) > 1e-3)
