"""``local_map`` cuts the gradient of an argument that is still being communicated.

The local tensor of a DTensor that ``redistribute(async_op=True)`` returned is an
``AsyncCollectiveTensor``, which has the graph. ``_local_map_wrapped`` in
``torch/distributed/tensor/experimental/_func_map.py`` passes on what its ``wait()`` returns: the
tensor within, which has none. Nothing says so, and what comes before the argument gets no gradient
from here. The styles of ``torch.distributed.tensor.parallel`` redistribute so, and return such
DTensors with ``use_local_output=False``.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "local_map: gradients are lost when an argument comes from redistribute(async_op=True)"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "If not specified, we will assume the gradient layout of the local tensor input remains the "
    "same as the original",
    "local_map",
)
SETUP = (
    "A module under tensor parallelism returns a DTensor to a function that is written for local "
    "tensors, attention or a mixture of experts."
)
WORKAROUND = "Redistribute without ``async_op``, or let ``local_map`` do so."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/151240",
        "near: open, 'wait() breaks the chain for backwards'; a call of the user's own",
    ),
    Public(
        query="local_map AsyncCollectiveTensor wait drops gradient autograd requires_grad lost",
        date="2026-11-29",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
style = RowwiseParallel(input_layouts=Replicate(), use_local_output=False)
model = parallelize_module(nn.Linear(4, 4), mesh, style)
square = local_map(torch.square, [Replicate()])
y = model(torch.ones(2, 4))
(y.sum() + square(y).sum()).backward()
expected = (1 + 2 * y.full_tensor()).sum(0)
torch.testing.assert_close(model.bias.grad.full_tensor(), expected)
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor.experimental._func_map:_local_map_wrapped",
        "local_arg = local_arg.wait()",
        "local_arg = local_arg.clone()  # as every operator that makes a new tensor, it waits",
    ),
)
