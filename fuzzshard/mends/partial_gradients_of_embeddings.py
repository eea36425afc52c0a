"""A parallel embedding cannot take the gradient of a layer that was given its DTensor.

An embedding whose rows are sharded makes a ``_MaskPartial``, which ``RowwiseParallel`` redistributes.
``_redistribute_backward`` (``torch/distributed/tensor/_redistribute.py``) lays the gradient as this
was before, and takes ``Replicate()`` in place of a partial sum, unless the gradient is one already.
That of a column parallel layer is: a ``Partial()``, if its ``input_layouts`` are those that it
wants, so that it redistributes nothing. No sum becomes another kind of sum, so it raises. The
gradient is summed, as any other is.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "RowwiseParallel: backward raises for an embedding that gives a DTensor to ColwiseParallel"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Whether to use local :class:`torch.Tensor` instead of :class:`DTensor` for the module output,"
    " default: True.",
    "RowwiseParallel, use_local_output",
)
SETUP = (
    "A plan of ``RowwiseParallel(input_layouts=Replicate(), use_local_output=False)`` for an"
    " embedding and ``ColwiseParallel()`` for the layer that gets its result."
)
WORKAROUND = "Let the embedding return a local tensor."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 6))
plan = {
    "0": RowwiseParallel(input_layouts=Replicate(), use_local_output=False),
    "1": ColwiseParallel(use_local_output=False),
}
parallelize_module(model, mesh, plan)
model(torch.arange(8).view(2, 4)).full_tensor().sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/172041",
        "brought the error",
        "Redistribution from one partial type to another MaskPartial is unsupported"
        " RowwiseParallel embedding use_local_output=False backward",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._redistribute:_redistribute_backward",
        "if (_is_shard_like(current) or current.is_replicate()) and target.is_partial():",
        "if current != target and target.is_partial():",
    ),
)
