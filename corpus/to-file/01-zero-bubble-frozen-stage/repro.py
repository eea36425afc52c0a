# A model whose first layers are frozen is fine-tuned in a pipeline.
# With ScheduleInterleavedZeroBubble its other layers get no gradients.
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)


def gradient_of_head(schedule_class):
    torch.manual_seed(0)
    embed, head = nn.Linear(4, 4), nn.Linear(4, 2)
    embed.requires_grad_(False)
    stages = [PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate((embed, head))]
    schedule = schedule_class(stages, 4, loss_fn=nn.functional.mse_loss)
    schedule.step(torch.ones(4, 4), target=torch.ones(4, 2))
    return head.weight.grad


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
expected = gradient_of_head(ScheduleInterleaved1F1B)
observed = gradient_of_head(ScheduleInterleavedZeroBubble)
dist.destroy_process_group()
print("head.weight.grad, interleaved 1F1B:", expected)
print("head.weight.grad, zero bubble:     ", observed)
sys.exit(observed is None or not torch.allclose(observed, expected))
