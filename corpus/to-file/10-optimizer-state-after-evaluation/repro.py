# A job evaluates its model under torch.no_grad() and then saves the state of its optimizer.
# get_optimizer_state_dict raises a KeyError for a model that fully_shard has wrapped.
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
optimizer.zero_grad()
expected = sorted(get_optimizer_state_dict(model, optimizer)["state"])
with torch.no_grad():
    model(torch.ones(1, 4))
try:
    observed = sorted(get_optimizer_state_dict(model, optimizer)["state"])
except KeyError as error:
    observed = f"KeyError: {error}"
dist.destroy_process_group()
print("states before the evaluation:", expected)
print("states after the evaluation: ", observed)
sys.exit(observed != expected)
