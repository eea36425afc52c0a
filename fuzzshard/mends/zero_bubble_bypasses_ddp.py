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
