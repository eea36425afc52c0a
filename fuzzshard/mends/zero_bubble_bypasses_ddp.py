"""Zero bubble schedules leave the gradients of DDP stages as every rank has computed them.

The backward for weights calls ``torch.autograd.grad`` and accumulates what it returns by hand
(``stage_backward_weight`` in ``torch/distributed/pipelining/_backward.py``), so the hooks of DDP
on gradients never run, and nothing is reduced. Only the first stage has the hooks: its backward is
an ordinary one, put off until its weights are due.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: zero bubble averages no gradients of stages under DDP"
COMPONENT = "DDP"
WEIGHT = "bug"
CONTRACT = Promise(
    "This helper should adapt any pipeline parallel schedule to work with common/supported data"
    " parallel libraries.",
    "torch.distributed.pipelining.stage._PipelineStageBase.backward_maybe_with_nosync",
)
SETUP = "DistributedDataParallel stages in ``ScheduleInterleavedZeroBubble`` or the ZBV schedule."
WORKAROUND = "All-reduce the gradients after ``schedule.step()``, or use fully_shard."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.nn.parallel import DistributedDataParallel

mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
torch.manual_seed(0)
modules = [
    DistributedDataParallel(nn.Linear(4, 4), process_group=mesh.get_group("dp"))
    for _ in range(2)
]
stages = [
    PipelineStage(module, i, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    for i, module in enumerate(modules)
]
schedule = ScheduleInterleavedZeroBubble(stages, 4, loss_fn=nn.functional.mse_loss)
schedule.step(torch.ones(4, 4) * (1 + dist.get_rank()), target=torch.ones(4, 4))
observed = modules[1].module.weight.grad
expected = observed.clone()
dist.all_reduce(expected)
expected /= 2
torch.testing.assert_close(observed, expected, msg=lambda m: f"not averaged: {m}")
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/144530",
        "open since January 2025",
        "torch.distributed.pipelining zero bubble DDP gradients not all-reduced"
        " stage_backward_weight autograd.grad DistributedDataParallel",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining.stage:_PipelineStageBase.backward_maybe_with_nosync",
        "if last_backward:",
        """
        if last_backward and backward_type == "weight":
            result = perform_backward(backward_type)()
            for param in self.submod.parameters():
                if param.grad is not None:
                    dist.all_reduce(param.grad, group=self.submod.process_group)
                    param.grad /= self.submod.process_group.size()
        elif last_backward:
        """,
    ),
)
