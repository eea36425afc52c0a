"""A trace takes batch norm's results on the CPU to have the strides of its input, and the kernel's
differ.

The kernel of the CPU allocates its result, and the gradient of its input, contiguous or in
channels-last, whichever the input suggests (``batch_norm_cpu`` and ``batch_norm_backward_cpu`` in
``aten/src/ATen/native/Normalization.cpp``). A trace computes strides by
``native_batch_norm_helper`` and ``native_batch_norm_backward`` in
``torch/_decomp/decompositions.py``, whose element-wise operations keep those of the input. So a
batch norm of a transposed tensor, as after a linear layer over sequences, is followed in the graph
by a view that the real tensor does not allow.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: a view fails when batch norm on the CPU gets a transposed input"
COMPONENT = "compile"
WEIGHT = "bug"
CONTRACT = Promise(
    "backends MUST match original eager striding exactly",
    "ezyang, pytorch issue 93648; `torch.compile`: 'Optimizes given model/function'",
)
SETUP = "A batch norm follows a linear layer over sequences, on the CPU."
WORKAROUND = "``.contiguous()`` on the input of the batch norm."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        h = self.norm(self.linear(x).transpose(1, 2))  # features before positions
        return h.transpose(1, 2).reshape(-1, 4)


model = torch.compile(Model(), backend="aot_eager")
model(torch.randn(2, 3, 4)).sum().backward()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/192668",
        "open, of the forward; pytorch PR 192681",
    ),
)
EDITS = (
    Edit(
        "torch._decomp.decompositions:native_batch_norm_helper",
        """
        if input.device.type == "cpu":
            save_mean = save_mean.to(dtype=input.dtype)
        """,
        """
        if input.device.type == "cpu":
            output = output.contiguous(memory_format=utils.suggest_memory_format(input))
            save_mean = save_mean.to(dtype=input.dtype)
        """,
    ),
    Edit(
        "torch._decomp.decompositions:native_batch_norm_backward",
        """
        if output_mask[1]:
        """,
        """
        if input.device.type == "cpu":
            grad_input = grad_input.contiguous(memory_format=utils.suggest_memory_format(input))
        if output_mask[1]:
        """,
    ),
)
