"""The metadata inference of a pipeline stage restores buffers that are no buffers any more.

A stage whose shapes are not given runs a forward and a backward before the first microbatch.
``_pre_metadata_inference_backup`` in ``torch/distributed/pipelining/stage.py`` keeps every buffer
and a copy of it, and ``_post_metadata_inference_cleanup`` copies that back into the tensor. Where
a forward assigns another tensor to the buffer (``self.running = self.running * 0.5 + ...``), what
is restored is the old one, which nobody reads any more. The module keeps the buffer of the
inference, in which stages behind the first have run on memory that nobody has written to.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: a buffer that forwards assign begins with what metadata inference has made"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "Those executions are allowed to observe module buffers, but they must not publish training"
    " state updates such as running counters or routing statistics.",
    "torch.distributed.pipelining.PipelineStage._pre_metadata_inference_backup",
)
SETUP = (
    "A ``PipelineStage`` without ``input_args`` of a module whose forward assigns a buffer in"
    " place of changing it."
)
WORKAROUND = (
    "Give PipelineStage its ``input_args`` and ``output_args``, or change the buffer in place."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls = self.calls + 1
        return self.linear(x)


dist.init_process_group("gloo")
model = Count()
stage = PipelineStage(model, 0, 1, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: out.sum())
schedule.step(torch.ones(2, 2), target=torch.ones(2, 2))
dist.destroy_process_group()
assert model.calls.item() == 2, f"two microbatches, and {model.calls.item():.0f} calls"
"""
TORCH = Releases(since="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/188558",
        "brought, closed: restores buffers after metadata inference, in place alone",
        "pipelining metadata inference restore module buffers reassigned must not publish training"
        " state _pre_metadata_inference_backup",
        "2026-11-29",
    ),
)
_STAGE = "torch.distributed.pipelining.stage:PipelineStage"
# ``verify --causes`` calls its entry UNSHOWN on 2.13, where metadata_inference_changes_buffers does
# it.
EDITS = (
    Edit(
        f"{_STAGE}._pre_metadata_inference_backup",
        """
        (buffer, buffer.detach().clone())
        for _, buffer in self.submod.named_buffers(remove_duplicate=False)
        """,
        """
        (module, name, buffer, buffer.detach().clone())
        for module in self.submod.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
        """,
    ),
    Edit(
        f"{_STAGE}._post_metadata_inference_cleanup",
        """
        for buffer, saved_buffer in buffer_backup:
            buffer.copy_(saved_buffer)
        """,
        """
        for module, name, buffer, saved_buffer in buffer_backup:
            buffer.copy_(saved_buffer)
            module._buffers[name] = buffer
        """,
    ),
)
