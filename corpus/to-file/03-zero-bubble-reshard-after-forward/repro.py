# The layers of a pipeline's stages are wrapped by fully_shard, with its default of resharding
# after forward. With ScheduleInterleavedZeroBubble, layers of a later stage get no gradients.
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)


def gradients(schedule_class):
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)]
    for module in modules:
        for layer in module:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(module, mesh=mesh["dp"])
    group = mesh["pp"].get_group()
    stages = [
        PipelineStage(module, i, 2, torch.device("cpu"), group=group)
        for i, module in enumerate(modules)
    ]
    schedule = schedule_class(stages, 4, loss_fn=nn.functional.mse_loss)
    schedule.step(torch.ones(4, 4), target=torch.ones(4, 4))
    grads = [p.grad for module in modules for p in module.parameters()]
    return [None if g is None else round(g.full_tensor().norm().item(), 4) for g in grads]


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("pp", "dp"))
expected, observed = gradients(ScheduleInterleaved1F1B), gradients(ScheduleInterleavedZeroBubble)
dist.destroy_process_group()
print("norms of gradients, interleaved 1F1B:", expected)
print("norms of gradients, zero bubble:     ", observed)
sys.exit(observed != expected)
