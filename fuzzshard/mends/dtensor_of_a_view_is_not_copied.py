"""``copy.deepcopy`` of a DTensor raises where its local tensor does not begin its storage.

``Tensor.__deepcopy__`` (``torch/_tensor.py``) clones a wrapper subclass, which has no storage of
its own, and tells one by ``data_ptr() == 0``. But a DTensor has the storage offset of its local
tensor, and ``data_ptr()`` is that offset in bytes. The gradients of a group of ``fully_shard`` are
views of one reduce-scattered tensor, so all but the first have an offset. Their storage, which has
no memory, is copied then. The sign of a tensor without a storage is that its pointer is nothing but
its offset.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: copy.deepcopy raises when the local tensor is a view with an offset"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "AveragedModel class creates a copy of the provided module",
    "torch/optim/swa_utils.py, AveragedModel",
)
SETUP = (
    "A running average of the sharded parameters (``AveragedModel``, or ``copy.deepcopy`` of a "
    "list of them) begins after a backward: gradients are copied with parameters, and those of "
    "all parameters of a group but the first are views. It raises ``RuntimeError: Attempted to "
    "call copy_() on an invalid python storage``."
)
WORKAROUND = "Copy ``p.detach()``, or call ``optimizer.zero_grad()`` before."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
average = AveragedModel(nn.ParameterList(model.parameters()))
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/116757",
        "near: closed without a change, deepcopy of a state dict of DTensors that are views",
        "deepcopy DTensor Attempted to call copy_() on an invalid python storage storage_offset grad",
        "2026-11-25",
    ),
)
EDITS = (
    Edit(
        "torch._tensor:Tensor.__deepcopy__",
        """
                or (type(self) is not Tensor and self.data_ptr() == 0)
        """,
        """
                or (
                    type(self) is not Tensor
                    and self.data_ptr() == self.storage_offset() * self.element_size()
                )
        """,
    ),
)
